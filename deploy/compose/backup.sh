#!/bin/sh
# Dump the ledger of the compose file, keep the newest dumps, restore the new one, and compare it with the ledger.
# Call it every week: docs/operations/deployment.md has a timer.
#
#   deploy/compose/backup.sh /var/backups/epsilon-ledger
set -eu
folder=$1
compose="${COMPOSE:-docker compose --file $(dirname "$0")/compose.yaml}"

mkdir -p "$folder"
chmod 700 "$folder"
# As the superuser, whom row-level security does not stop, by the server's own socket.
$compose exec -T database pg_dump --username=postgres --format=custom ledger > "$folder/new.dump"
dump="$folder/ledger-$(date -u +%Y-%m-%d).dump"
mv "$folder/new.dump" "$dump"
ls -1 "$folder"/ledger-*.dump | sort -r | tail -n "+$((${BACKUPS_KEPT:-8} + 1))" | xargs -r rm

$compose exec -T database dropdb --username=postgres --if-exists ledger_scratch
$compose exec -T database createdb --username=postgres --owner=ledger --template=template0 --encoding=UTF8 ledger_scratch
$compose exec -T database pg_restore --username=postgres --exit-on-error --dbname=ledger_scratch < "$dump"
echo "$dump is restored."
# The restored database has the ledger's role, and its password.
$compose exec -T service sh -c 'export PGPASSWORD="$(cat /run/secrets/database-password)" && exec "$@"' sh \
    epsilon-ledger backup verify postgresql://ledger@database:5432/ledger_scratch
