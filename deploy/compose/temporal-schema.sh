#!/bin/sh
# Brings Temporal's two databases to the schema of this version: makes it at the first start, updates it after a newer
# image, and changes nothing otherwise.
set -eu
SQL_PASSWORD=$(cat /secrets/password)
export SQL_PASSWORD

for database in temporal temporal_visibility; do
	case $database in temporal) schema=temporal ;; *) schema=visibility ;; esac
	tool="temporal-sql-tool --plugin postgres12 --endpoint postgres --port 5432 --user temporal --database $database"
	$tool setup-schema --version 0.0
	$tool update-schema --schema-dir /etc/temporal/schema/postgresql/v12/$schema/versioned
done
