#!/bin/sh
# Run by PostgreSQL's image at its first start: an ordinary role, which does not pass row-level security, its
# database, and another one into which backups are restored.
set -eu
psql --username postgres --dbname postgres --no-psqlrc --quiet --set ON_ERROR_STOP=1 \
    --set password="$(cat "$LEDGER_PASSWORD_FILE")" <<'SQL'
CREATE ROLE ledger LOGIN PASSWORD :'password';
CREATE DATABASE ledger OWNER ledger ENCODING 'UTF8' TEMPLATE template0;
CREATE DATABASE ledger_scratch OWNER ledger ENCODING 'UTF8' TEMPLATE template0;
SQL
