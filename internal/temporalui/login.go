package temporalui

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the login page
	"encoding/base64"
	"html/template"
	"net/http"
	"path"
	"regexp"
	"strings"

	"github.com/errandhq/errand/automation"
)

//go:embed login.html
var loginHTML string

var (
	loginPage   = template.Must(template.New("login").Parse(loginHTML))
	loginPolicy = "default-src 'none'; style-src '" + styleHash() + "'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

// styleHash names the page's own style in its policy.
func styleHash() string {
	hash := sha256.Sum256([]byte(regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(loginHTML)[1]))
	return "sha256-" + base64.StdEncoding.EncodeToString(hash[:])
}

// loginForm is what the login page shows.
type loginForm struct {
	// To is where a person wanted to go.
	To string
	// Problem says why the last try failed.
	Problem string
	// TokenFile and Action are the same on every page.
	TokenFile, Action string
}

func (g *Guard) showLogin(w http.ResponseWriter, r *http.Request, status int, form loginForm) {
	form.TokenFile, form.Action = g.TokenFile, loginPath
	var page bytes.Buffer
	if err := loginPage.Execute(&page, form); err != nil {
		g.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", loginPolicy)
	w.Header().Set("X-Frame-Options", "DENY")
	w.WriteHeader(status)
	_, _ = page.WriteTo(w) // who asked is gone
}

// login turns the token of a form into a session. The token is in the body, which no log and no history keeps.
func (g *Guard) login(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Redirect(w, r, Path, http.StatusSeeOther)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		g.refuse(w, r, automation.Errorf(automation.CodeValidationFailed, "the form cannot be read: %v", err))
		return
	}
	token, to := strings.TrimSpace(r.PostForm.Get("token")), within(r.PostForm.Get("to"))
	switch err := g.SigningIn(r.Context(), token); automation.CodeOf(err) {
	case "":
	case automation.CodeUnauthorized:
		g.showLogin(w, r, http.StatusUnauthorized, loginForm{To: to, Problem: "This token is not valid. The one of server.json changes whenever errandd starts."})
		return
	case automation.CodeForbidden:
		g.showLogin(w, r, http.StatusForbidden, loginForm{To: to, Problem: "This token is valid, but only an administrator may use Temporal."})
		return
	default:
		g.refuse(w, r, err)
		return
	}
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // without TLS, which only loopback is, a secure cookie would be dropped
		Name: cookieName, Value: g.sessions.begin(token), Path: Path, MaxAge: int(SessionLife.Seconds()),
		Secure: g.secure, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
	http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // within has checked it
}

// within returns an address of the interface as it is, and Path for any other. What begins with two slashes names
// another host, whatever follows.
func within(to string) string {
	place, _, _ := strings.Cut(to, "?")
	below := strings.HasPrefix(place, Path+"/") && strings.HasPrefix(path.Clean(place), Path+"/")
	if place != Path && !below || place == loginPath || strings.ContainsAny(to, "\\\r\n") {
		return Path
	}
	return to
}
