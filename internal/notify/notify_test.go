package notify_test

import (
	"testing"
	"testing/synctest"

	"github.com/errandhq/errand/internal/notify"
)

func TestHub(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hub := notify.New()
		hub.Notify("nobody waits")
		one, stopOne := hub.Subscribe("a")
		two, stopTwo := hub.Subscribe("a")
		other, stopOther := hub.Subscribe("b")
		defer stopOther()
		for range 3 {
			hub.Notify("a") // must not block, however slow the waiters are
		}
		if len(one) != 1 || len(two) != 1 || len(other) != 0 {
			t.Errorf("waiting notifications: %d, %d, %d; want 1, 1, 0", len(one), len(two), len(other))
		}
		<-one
		stopOne()
		stopOne()
		hub.Notify("a")
		if len(one) != 0 || len(two) != 1 {
			t.Errorf("after the end of a subscription: %d, %d; want 0, 1", len(one), len(two))
		}
		woken := make(chan struct{})
		third, stopThird := hub.Subscribe("c")
		defer stopThird()
		go func() {
			<-third
			close(woken)
		}()
		synctest.Wait()
		hub.Notify("c")
		<-woken
		stopTwo()
	})
}
