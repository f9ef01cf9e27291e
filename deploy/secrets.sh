#!/bin/sh
# Makes what must be secret in the folder that is named, once: what is there stays as it is. Git ignores folders `secrets`.
#
#   deploy/secrets.sh deploy/compose/secrets
set -eu
mkdir -p "$1"
chmod 700 "$1"
cd "$1"
test -s database-password || openssl rand -hex 24 > database-password
test -s superuser-password || openssl rand -hex 24 > superuser-password
test -s signing.pem || openssl genpkey -algorithm ed25519 -out signing.pem
# Containers read them as users of their own; it is the folder that keeps others out.
chmod 644 database-password superuser-password signing.pem
