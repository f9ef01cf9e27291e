#!/bin/sh
# What the deployment files need of the entry point of PostgreSQL's image: an ordinary user, the superuser's password from
# a file, and the scripts of a first start, during which the server listens on its socket only.
set -eu
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA"
    chown -R postgres "$PGDATA" /var/run/postgresql
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
mkdir -p "$PGDATA"
chmod 0700 "$PGDATA"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username=postgres --pwfile="$POSTGRES_PASSWORD_FILE" --auth-host=scram-sha-256 --auth-local=trust
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl --wait start --options="-c listen_addresses=''"
    for script in /docker-entrypoint-initdb.d/*.sh; do
        "$script"
    done
    pg_ctl --wait --mode=fast stop
fi
exec "$@" -c listen_addresses='*'
