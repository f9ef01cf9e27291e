#!/bin/sh
# Take from a virtual environment what the service never imports: a quarter of the image. Called by the Dockerfile.
#
#   trim.sh /opt/epsilon-ledger
set -eu
cd "$1"/lib/python3*/site-packages

# Of numpy's own tests, numpy.testing imports one file.
find . -type f -path '*/tests/*' -not -name _natype.py -not -path './numpy/*/tests/__init__.py' -delete
find . -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.[chaf]' -o -name '*.cpp' \) -delete
# tests/packaging/test_trimmed_image.py computes every mechanism without these.
for part in cluster datasets differentiate integrate interpolate io misc ndimage odr signal stats; do
    rm -r "scipy/$part"
done

# Symbols for debuggers. Files that look up a library of their own wheel were aligned by patchelf, which strip may undo.
find . -name '*.so' -not -path './*.libs/*' | while read -r file; do
    readelf --dynamic "$file" | grep --quiet --extended-regexp 'R(UN)?PATH' || strip --strip-unneeded "$file"
done

# Compiled files name the second in which their source changed, and a builder rounds the fractions of what it copies.
find . -name '*.py' -exec touch --date=@1 {} +
