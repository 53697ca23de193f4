#!/bin/sh
# Makes the passwords of docker-compose.yml, each once: one that is there stays. Each service has a directory that holds
# what it needs and no other service sees. The numbers are the users of the images.
set -eu
umask 077
secrets=${SECRETS:-/secrets}
postgres_user=${POSTGRES_UID:-999}
temporal_user=${TEMPORAL_UID:-1000}
errandd_user=${ERRANDD_UID:-10001}

# put FILE USER: standard input becomes the file, whole or not at all.
put() {
	cat >"$1.new"
	chown "$2" "$1.new"
	chmod 400 "$1.new"
	mv "$1.new" "$1"
}

for name in superuser temporal errandd; do
	file=$secrets/postgres/$name
	if [ ! -e "$file" ]; then
		od -An -N32 -tx1 /dev/urandom | tr -d ' \n' | put "$file" "$postgres_user"
		echo "made the password of $name"
	fi
done
# Copies for the services that log in, made again each time: what PostgreSQL was given counts.
put "$secrets/temporal/password" "$temporal_user" <"$secrets/postgres/temporal"
printf 'postgres:5432:errandd:errandd:%s\n' "$(cat "$secrets/postgres/errandd")" | put "$secrets/errandd/pgpass" "$errandd_user"
chown "$postgres_user" "$secrets/postgres"
chown "$temporal_user" "$secrets/temporal"
chown "$errandd_user" "$secrets/errandd"
