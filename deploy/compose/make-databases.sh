#!/bin/sh
# Makes the users and databases of Temporal and errandd in an empty PostgreSQL; its image runs this once.
set -eu
secrets=${SECRETS:-/secrets}

# The passwords go in by standard input: arguments can be seen by others.
for name in temporal errandd; do
	printf "\\\\set password '%s'\nCREATE ROLE %s LOGIN PASSWORD :'password';\n" "$(cat "$secrets/$name")" "$name"
done | psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname=postgres

psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname=postgres <<'SQL'
CREATE DATABASE errandd OWNER errandd;
CREATE DATABASE temporal OWNER temporal;
CREATE DATABASE temporal_visibility OWNER temporal;
REVOKE CONNECT ON DATABASE errandd, temporal, temporal_visibility FROM PUBLIC;
SQL
