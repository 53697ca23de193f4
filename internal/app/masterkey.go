package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/config"
	"github.com/errandhq/errand/internal/identity"
	"github.com/errandhq/errand/internal/lockfile"
	"github.com/errandhq/errand/internal/sealing"
	"github.com/errandhq/errand/internal/store"
)

// newVault returns the vault of a master key.
func newVault(master []byte) (*sealing.Vault, error) {
	return sealing.New(identity.MasterKeyID(master), identity.DeriveKey(master, "webhook secrets"))
}

// replacementOf is where a new master key waits until the database is bound to it.
func replacementOf(masterKeyFile string) string { return masterKeyFile + ".new" }

// databaseOf returns where the ledger is.
func databaseOf(settings config.Config) string {
	if settings.DatabaseURL != "" {
		return settings.DatabaseURL
	}
	return filepath.Join(settings.DataDir, "errand.db")
}

// openBound opens the ledger with the vault of the master key, and binds one to the other. A replacement of the key
// that was cut off after its commit is completed here.
func (a *App) openBound(ctx context.Context) (*store.Store, *sealing.Vault, error) {
	ledger, vault, err := a.openWith(ctx, a.masterKey)
	if automation.CodeOf(err) != automation.CodeForbidden {
		return ledger, vault, err
	}
	path := a.settings.MasterKeyFile
	wrong := fmt.Errorf("%s is not the master key of this database: put the right file there; when that is lost, "+
		"errandd --rekey --discard-secrets gives up the secrets that it protects: %w", path, err)
	next, loadErr := identity.LoadMasterKey(replacementOf(path))
	if errors.Is(loadErr, fs.ErrNotExist) {
		return nil, nil, wrong
	}
	if loadErr != nil {
		return nil, nil, errors.Join(wrong, loadErr)
	}
	ledger, vault, err = a.openWith(ctx, next)
	if err != nil {
		return nil, nil, wrong
	}
	if err := os.Rename(replacementOf(path), path); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("putting the new master key in place: %w", err), ledger.Close())
	}
	a.masterKey = next
	a.logger.Info("the replacement of the master key was completed", "file", path)
	return ledger, vault, nil
}

func (a *App) openWith(ctx context.Context, master []byte) (*store.Store, *sealing.Vault, error) {
	vault, err := newVault(master)
	if err != nil {
		return nil, nil, err
	}
	ledger, err := store.Open(ctx, store.Options{
		URL: databaseOf(a.settings), Now: a.now, NewID: a.newID, Vault: vault, Logger: a.logger,
		OnRunChange: func(runID, _ string) { a.changes.Notify(runID) },
		OnRunReady:  a.runReady,
		Observer:    a.metrics,
	})
	if err != nil {
		return nil, nil, err
	}
	if err := ledger.BindMasterKey(ctx, vault.KeyID()); err != nil {
		return nil, nil, errors.Join(err, ledger.Close())
	}
	return ledger, vault, nil
}

// rekey replaces the master key by a new one and seals every stored secret again. It works on a data directory whose
// server is stopped. The new key waits beside the old one until the database is bound to it, so that a crash at any
// point leaves a pair that fits: the next start, or the next call, completes what was begun.
func rekey(ctx context.Context, settings config.Config, logger *slog.Logger) (err error) {
	lock, err := lockfile.Take(filepath.Join(settings.DataDir, "errandd.lock"))
	if held, ok := errors.AsType[*lockfile.HeldError](err); ok {
		return fmt.Errorf("errandd (pid %d) is running on %s: stop it first", held.PID, settings.DataDir)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	ledger, err := store.Open(ctx, store.Options{
		URL: databaseOf(settings), Now: time.Now, Logger: logger,
		NewID: func() string { return uuid.Must(uuid.NewV7()).String() },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ledger.Close()) }()
	if settings.DiscardSecrets {
		return discardSecrets(ctx, settings, ledger, logger)
	}
	return replaceMasterKey(ctx, settings, ledger, logger)
}

func replaceMasterKey(ctx context.Context, settings config.Config, ledger *store.Store, logger *slog.Logger) error {
	path := settings.MasterKeyFile
	master, err := identity.LoadMasterKey(path)
	if err != nil {
		return err
	}
	replacement, err := identity.LoadOrCreateMasterKey(replacementOf(path))
	if err != nil {
		return err
	}
	before, err := newVault(master)
	if err != nil {
		return err
	}
	after, err := newVault(replacement)
	if err != nil {
		return err
	}
	bound := ledger.BindMasterKey(ctx, before.KeyID())
	if automation.CodeOf(bound) == automation.CodeForbidden && ledger.BindMasterKey(ctx, after.KeyID()) == nil {
		return placeMasterKey(path, logger, 0) // an earlier call had come so far
	}
	if bound != nil {
		return fmt.Errorf("%s is not the master key of this database: put the right file there: %w", path, bound)
	}
	count, err := ledger.ReplaceMasterKey(ctx, after.KeyID(),
		func(id string, sealed automation.SealedSecret) (automation.SealedSecret, error) {
			secret, err := before.Open(id, sealed)
			if err != nil {
				return sealed, err
			}
			return after.Seal(id, secret)
		})
	if err != nil {
		return err
	}
	return placeMasterKey(path, logger, count)
}

func placeMasterKey(path string, logger *slog.Logger, count int) error {
	if err := os.Rename(replacementOf(path), path); err != nil {
		return fmt.Errorf("putting the new master key in place: %w", err)
	}
	logger.Info("the master key was replaced; copy the file to every server of this database", "file", path, "secrets", count)
	return nil
}

// discardSecrets binds the database to the present master key, a new one where there is none, and forgets what only
// a lost one could open.
func discardSecrets(ctx context.Context, settings config.Config, ledger *store.Store, logger *slog.Logger) error {
	master, err := identity.LoadOrCreateMasterKey(settings.MasterKeyFile)
	if err != nil {
		return err
	}
	count, err := ledger.ReplaceMasterKey(ctx, identity.MasterKeyID(master), nil)
	if err != nil {
		return err
	}
	logger.Info("the stored secrets were given up: their webhooks refuse every delivery until they are given new ones",
		"file", settings.MasterKeyFile, "secrets", count)
	return nil
}
