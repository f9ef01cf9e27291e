#!/bin/sh
# Verify a statement of Epsilon Ledger without Python: sh verify_statement.sh statement.json signing.pub
# It needs OpenSSL 3, and prints what was signed, more readably with jq.
# Exit status 0: sound; 1: not sound; 2: a file cannot be read.
set -eu
fail() { echo "NOT SOUND: $1." >&2; exit 1; }
if [ $# -ne 2 ] || [ ! -r "$1" ] || ! openssl pkey -pubin -in "$2" -noout; then
  echo "Usage: verify_statement.sh DOCUMENT PUBLIC_KEY" >&2
  exit 2
fi
document=$1 public_key=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The ledger writes a document on one line and in its canonical form: the signed bytes stand in it as they were signed.
form='^{"payload":\({.*}\),"signature":{"algorithm":"Ed25519","key_id":"\([0-9a-f]\{16\}\)","value":"\([A-Za-z0-9+/]\{86\}==\)"}}$'
part() { LC_ALL=C sed -n "s#$form#\\$1#p" "$document" | tr -d '\n'; }
part 1 > "$work/payload"
[ "$(LC_ALL=C sed -n '$=' "$document")" = 1 ] && [ -s "$work/payload" ] || fail "the document is not as the ledger wrote it"
key_id=$(openssl pkey -pubin -in "$public_key" -outform DER | tail -c 32 | openssl dgst -sha256 -r | cut -c 1-16)
[ "$(part 2)" = "$key_id" ] || fail "the document names another key, and this one is $key_id"
part 3 | openssl base64 -d -A > "$work/signature"
openssl pkeyutl -verify -pubin -inkey "$public_key" -rawin -in "$work/payload" -sigfile "$work/signature" > "$work/said" ||
  fail "the document is not signed by the key $key_id"
echo "Sound: signed by the key $key_id. This was signed:"
if command -v jq > "$work/said"; then jq . "$work/payload"; else cat "$work/payload"; fi
