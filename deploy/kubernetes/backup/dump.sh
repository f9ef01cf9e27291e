#!/bin/sh
# Dump the ledger, keep the newest dumps, and restore the new one into the database for trials.
# Run in PostgreSQL's image; the variables are those of the service, and SCRATCH_DATABASE_URL.
set -eu
folder=${BACKUP_FOLDER:-/backups}
PGPASSWORD=$(cat "$EPSILON_LEDGER_DATABASE_PASSWORD_FILE")
export PGPASSWORD

# Row-level security shows an ordinary role one organisation only, unless it asks for all of them.
PGOPTIONS="-c epsilon_ledger.all_tenants=on" pg_dump --enable-row-security --format=custom \
    --file="$folder/new.dump" "$EPSILON_LEDGER_DATABASE_URL"
dump="$folder/ledger-$(date -u +%Y-%m-%d).dump"
mv "$folder/new.dump" "$dump"
ls -1 "$folder"/ledger-*.dump | sort -r | tail -n "+$((${BACKUPS_KEPT:-8} + 1))" | xargs -r rm

pg_restore --exit-on-error --clean --if-exists --no-owner --dbname="$SCRATCH_DATABASE_URL" "$dump"
echo "$dump is restored."
