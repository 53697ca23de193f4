package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/errandhq/errand/automation"
)

// touchEvery is how far the stored last-seen time of a machine may be behind.
const touchEvery = 10 * time.Second

// maxNameBytes holds a name of 200 characters of any kind.
const maxNameBytes = 800

// maxConcurrency bounds what a machine may claim to execute at once.
const maxConcurrency = 10_000

// EnrollMachine implements [automation.EnrollmentStore]. Errors: validation_failed, not_found for an owner that does
// not exist, forbidden for a key that is enrolled for another owner.
func (s *Store) EnrollMachine(ctx context.Context, m automation.NewMachine) (automation.Machine, error) {
	owner, ok := canonicalID(m.OwnerID)
	if !ok {
		return automation.Machine{}, notFound("owner", m.OwnerID)
	}
	labels, err := checkNewMachine(m)
	if err != nil {
		return automation.Machine{}, err
	}
	var id string
	err = retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			var enrolledFor string
			found, err := exists(tx.QueryRowContext(ctx, `SELECT id, owner_id FROM machines WHERE public_key = $1`, m.PublicKey).
				Scan(&id, &enrolledFor))
			switch {
			case err != nil:
				return fmt.Errorf("looking up a device key: %w", err)
			case found && enrolledFor != owner:
				return automation.Errorf(automation.CodeForbidden, "this device key is enrolled for another owner; make a new key")
			case found:
				return nil
			}
			id = s.options.NewID()
			return s.insertMachine(ctx, tx, id, owner, m, labels)
		})
	})
	if err != nil {
		return automation.Machine{}, err
	}
	return s.Machine(ctx, id)
}

func checkNewMachine(m automation.NewMachine) (labels string, err error) {
	var wrong violations
	wrong.name("name", m.Name, maxNameBytes)
	wrong.text("platform", m.Platform, maxKeyBytes)
	wrong.text("version", m.Version, maxKeyBytes)
	wrong.name("publicKey", m.PublicKey, maxPublicKeyBytes)
	labels = wrong.labels(m.Labels)
	return labels, wrong.err()
}

func (s *Store) insertMachine(ctx context.Context, tx querier, id, owner string, m automation.NewMachine, labels string) error {
	known, err := exists(tx.QueryRowContext(ctx, `SELECT id FROM owners WHERE id = $1`, owner).Scan(new(string)))
	if err != nil {
		return fmt.Errorf("looking up an owner: %w", err)
	}
	if !known {
		return notFound("owner", owner)
	}
	first, err := affected(tx.ExecContext(ctx, `INSERT INTO machines (id, owner_id, name, platform, version, labels, public_key,
			state, concurrency, instance_directory, instance_boot, instance_start, instance_host, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0, '', '', 0, '', $9) ON CONFLICT (public_key) DO NOTHING`,
		id, owner, m.Name, m.Platform, m.Version, labels, m.PublicKey, string(automation.MachineActive), at(s.now())))
	if err != nil {
		return fmt.Errorf("storing a machine: %w", err)
	}
	if !first {
		return errLostRace
	}
	return nil
}

// labels returns labels as they are stored, sorted by name.
func (v *violations) labels(labels map[string]string) string {
	if labels == nil {
		labels = map[string]string{}
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		value := labels[name]
		v.text("labels", name, maxKeyBytes)
		v.text("labels", value, maxLabelsBytes)
	}
	text, err := encode(labels)
	if err != nil || len(text) > maxLabelsBytes {
		v.add("labels", fmt.Sprintf("are longer than the %d bytes allowed", maxLabelsBytes))
	}
	return text
}

const machineColumns = `m.id, m.owner_id, m.name, m.platform, m.version, m.labels, m.public_key, m.state, m.concurrency,
	m.instance_directory, m.instance_boot, m.instance_start, m.instance_host, m.last_seen_at, m.created_at, m.revoked_at`

func scanMachine(row scanner) (automation.Machine, error) {
	var m automation.Machine
	var instance automation.Instance
	var labels string
	var lastSeen, created, revoked instant
	if err := row.Scan(&m.ID, &m.OwnerID, &m.Name, &m.Platform, &m.Version, &labels, &m.PublicKey, &m.State, &m.Concurrency,
		&instance.DirectoryID, &instance.BootID, &instance.Start, &instance.Host, &lastSeen, &created, &revoked); err != nil {
		return automation.Machine{}, err
	}
	if err := json.Unmarshal([]byte(labels), &m.Labels); err != nil {
		return automation.Machine{}, fmt.Errorf("decoding the labels of machine %s: %w", m.ID, err)
	}
	if instance.DirectoryID != "" {
		m.Instance = &instance
	}
	m.LastSeenAt, m.CreatedAt, m.RevokedAt = lastSeen.optional(), created.time(), revoked.optional()
	return m, nil
}

// Machine implements [automation.MachineStore].
func (s *Store) Machine(ctx context.Context, id string) (automation.Machine, error) {
	known, ok := canonicalID(id)
	if !ok {
		return automation.Machine{}, notFound("machine", id)
	}
	m, err := readMachine(ctx, s.read, known, "")
	return m, translate(err)
}

// readMachine reads one machine; lock is a clause of the dialect.
func readMachine(ctx context.Context, q querier, id, lock string) (automation.Machine, error) {
	m, err := scanMachine(q.QueryRowContext(ctx, `SELECT `+machineColumns+` FROM machines m WHERE m.id = $1`+lock, id))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return automation.Machine{}, notFound("machine", id)
	case err != nil:
		return automation.Machine{}, fmt.Errorf("reading machine %s: %w", id, err)
	}
	return m, nil
}

// ownedMachine reads one machine of the owner; lock is a clause of the dialect.
func ownedMachine(ctx context.Context, q querier, ownerID, id, lock string) (automation.Machine, error) {
	known, ok := canonicalID(id)
	if !ok {
		return automation.Machine{}, notFound("machine", id)
	}
	m, err := readMachine(ctx, q, known, lock)
	if err == nil && !sameID(m.OwnerID, ownerID) {
		return automation.Machine{}, notFound("machine", id)
	}
	return m, err
}

// OwnedMachine implements [automation.MachineStore].
func (s *Store) OwnedMachine(ctx context.Context, ownerID, id string) (automation.MachineLoad, error) {
	m, err := ownedMachine(ctx, s.read, ownerID, id, "")
	if err != nil {
		return automation.MachineLoad{}, translate(err)
	}
	loads, err := s.addLoads(ctx, []automation.Machine{m})
	if err != nil {
		return automation.MachineLoad{}, translate(err)
	}
	return loads[0], nil
}

// ChangeMachine implements [automation.MachineStore].
func (s *Store) ChangeMachine(ctx context.Context, ownerID, id string, c automation.MachineChange) (automation.MachineLoad, error) {
	var wrong violations
	if c.Name != nil {
		wrong.name("name", *c.Name, maxNameBytes)
	}
	wrong.labels(c.Labels)
	if err := wrong.err(); err != nil {
		return automation.MachineLoad{}, err
	}
	err := retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			m, err := ownedMachine(ctx, tx, ownerID, id, s.dialect.own)
			if err != nil {
				return err
			}
			if c.Name != nil {
				m.Name = *c.Name
			}
			if c.Labels != nil {
				m.Labels = c.Labels
			}
			labels, err := encode(m.Labels)
			if err != nil {
				return fmt.Errorf("encoding labels: %w", err)
			}
			if _, err := tx.ExecContext(ctx, `UPDATE machines SET name = $1, labels = $2 WHERE id = $3`, m.Name, labels, m.ID); err != nil {
				return fmt.Errorf("changing machine %s: %w", m.ID, err)
			}
			return nil
		})
	})
	if err != nil {
		return automation.MachineLoad{}, err
	}
	return s.OwnedMachine(ctx, ownerID, id)
}

// Machines implements [automation.MachineStore].
func (s *Store) Machines(ctx context.Context, ownerID string, limit int, cursor string) ([]automation.MachineLoad, string, error) {
	var wrong violations
	after := wrong.cursor(listMachines, cursor)
	if err := wrong.err(); err != nil {
		return nil, "", err
	}
	var q statement
	q.add(`SELECT ` + machineColumns + ` FROM machines m WHERE m.owner_id = `)
	if !q.addID(ownerID) {
		return nil, "", nil
	}
	if after != nil {
		q.add(` AND (m.created_at, m.id) > (?, ?)`, after.createdAt, after.id)
	}
	size := pageSize(limit)
	q.add(` ORDER BY m.created_at, m.id LIMIT ?`, size+1)
	rows, err := q.query(ctx, s.read)
	machines, err := collect(rows, err, scanMachine)
	if err != nil {
		return nil, "", translate(fmt.Errorf("listing machines: %w", err))
	}
	machines, next := page(machines, size, listMachines, func(m automation.Machine) position {
		return position{createdAt: at(m.CreatedAt), id: m.ID}
	})
	loads, err := s.addLoads(ctx, machines)
	if err != nil {
		return nil, "", translate(err)
	}
	return loads, next, nil
}

// MachineLoads implements [automation.MachineStore]. Ids that name no machine are missing from the result.
func (s *Store) MachineLoads(ctx context.Context, ids []string) (map[string]automation.MachineLoad, error) {
	byID := make(map[string]automation.MachineLoad, len(ids))
	for chunk := range chunks(canonicalIDs(ids)) {
		var q statement
		q.add(`SELECT ` + machineColumns + ` FROM machines m WHERE m.id IN `)
		q.addIDs(chunk)
		rows, err := q.query(ctx, s.read)
		machines, err := collect(rows, err, scanMachine)
		if err != nil {
			return nil, translate(fmt.Errorf("reading machines: %w", err))
		}
		loads, err := s.addLoads(ctx, machines)
		if err != nil {
			return nil, translate(err)
		}
		for _, load := range loads {
			byID[load.ID] = load
		}
	}
	return byID, nil
}

// addLoads counts what runs and waits on machines, of which there are at most a page.
func (s *Store) addLoads(ctx context.Context, machines []automation.Machine) ([]automation.MachineLoad, error) {
	if len(machines) == 0 {
		return nil, nil
	}
	ids := make([]string, len(machines))
	for i := range machines {
		ids[i] = machines[i].ID
	}
	running, err := s.countRuns(ctx, `SELECT machine_id, sum(executing) FROM runs WHERE executing > 0`, ids)
	if err != nil {
		return nil, err
	}
	pending, err := s.countRuns(ctx, `SELECT machine_id, count(*) FROM runs WHERE finished_at IS NULL AND status = 'pending'`, ids)
	if err != nil {
		return nil, err
	}
	loads := make([]automation.MachineLoad, len(machines))
	for i, m := range machines {
		loads[i] = automation.MachineLoad{Machine: m, RunningSteps: running[m.ID], PendingRuns: pending[m.ID]}
	}
	return loads, nil
}

// countRuns completes a statement that counts by machine. It reads a partial index that holds only what it counts.
func (s *Store) countRuns(ctx context.Context, count string, machineIDs []string) (map[string]int, error) {
	var q statement
	q.add(count + ` AND machine_id IN `)
	q.addIDs(machineIDs)
	q.add(` GROUP BY machine_id`)
	rows, err := q.query(ctx, s.read)
	counts := map[string]int{}
	err = each(rows, err, func(row scanner) error {
		var id string
		var n int
		if err := row.Scan(&id, &n); err != nil {
			return err
		}
		counts[id] = n
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("counting the runs of machines: %w", err)
	}
	return counts, nil
}

// TouchMachine implements [automation.MachineStore]. A revoked machine is not seen any more.
func (s *Store) TouchMachine(ctx context.Context, id string, t time.Time) error {
	known, ok := canonicalID(id)
	if !ok {
		return notFound("machine", id)
	}
	if stored, ok := s.touched.Load(known); ok && t.Sub(stored.(time.Time)) < touchEvery { //nolint:forcetypeassert // only times are stored
		return nil
	}
	var touched bool
	err := retry(ctx, func() error {
		return s.write(ctx, relaxed, func(ctx context.Context, tx querier) (err error) {
			touched, err = affected(tx.ExecContext(ctx, `UPDATE machines SET last_seen_at = $1
				WHERE id = $2 AND state = 'active' AND (last_seen_at IS NULL OR last_seen_at < $1)`, at(t), known))
			return err
		})
	})
	if err == nil && touched {
		s.touched.Store(known, t)
	}
	return err
}
