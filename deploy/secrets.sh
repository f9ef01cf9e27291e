#!/bin/sh
# Create the secrets in the given folder. Existing files stay as they are. Git ignores folders named `secrets`.
#
#   deploy/secrets.sh deploy/compose/secrets
set -eu
mkdir -p "$1"
chmod 700 "$1"
cd "$1"
test -s database-password || openssl rand -hex 24 > database-password
test -s superuser-password || openssl rand -hex 24 > superuser-password
test -s signing.pem || openssl genpkey -algorithm ed25519 -out signing.pem
# Containers read the files as their own users; the folder's mode keeps others out.
chmod 644 database-password superuser-password signing.pem
