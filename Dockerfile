# The service as an image. One line leads to the first sign-in link, which it prints:
#
#   docker build --tag epsilon-ledger .
#   docker run --name ledger --publish 8000:8000 --volume epsilon-ledger:/data epsilon-ledger
#
# deploy/ has a compose file and Kubernetes manifests. By hand, on PostgreSQL, give each call
# --env EPSILON_LEDGER_DATABASE_URL=postgresql://USER@HOST/DATABASE instead of the volume,
# and call `epsilon-ledger migrate` first.
#
# The digest is of the index of all architectures; docs/contributing/releases.md says where it is from.

# What the base image has and the service uses: the standard library, compiled, since the file system is read-only later.
FROM python:3.13-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS system
# The ids are fixed, so that a volume keeps its owner over new images.
RUN groupadd --gid 10001 ledger \
    && useradd --uid 10001 --gid ledger --no-create-home --home-dir /data --shell /usr/sbin/nologin ledger \
    && cd "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && rm -rf ensurepip idlelib tkinter turtledemo site-packages/* /usr/local/bin/pip* /usr/local/include \
    && python -m compileall -q --invalidation-mode unchecked-hash .

FROM python:3.13-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# npm fetches Chart.js, for the build alone; binutils strips libraries.
RUN apt-get update && apt-get install --yes --no-install-recommends binutils npm
RUN python -m venv /opt/build && python -m venv --without-pip /opt/epsilon-ledger

# First what seldom changes: the dependencies, each by its hash. Most of it is never imported: it is compiled later.
COPY requirements.lock requirements-dev.lock ./
RUN /opt/build/bin/python -m pip --python /opt/epsilon-ledger/bin/python install --no-compile \
    --require-hashes --requirement requirements.lock
# The build backend stands in the development lock. Should it come to need another package, pip stops here and names it.
RUN awk '/^[a-z]/ { kept = /^(hatch-fancy-pypi-readme|hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } kept' requirements-dev.lock > build.lock \
    && /opt/build/bin/python -m pip install --require-hashes --requirement build.lock

COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY web web
COPY app app
COPY migrations migrations
RUN /opt/build/bin/python -m hatchling build --target wheel --directory wheels \
    && /opt/build/bin/python -m pip --python /opt/epsilon-ledger/bin/python install --no-compile --no-deps --no-index wheels/*.whl

COPY deploy/image/trim.sh ./
RUN ./trim.sh /opt/epsilon-ledger
# Compile what the service imports. A first start of the trimmed environment, too: what it misses stops the build.
RUN export EPSILON_LEDGER_DATABASE_URL=sqlite:///compiled.db PATH=/opt/epsilon-ledger/bin:$PATH \
    && epsilon-ledger init > /dev/null && epsilon-ledger verify > /dev/null && epsilon-ledger openapi > /dev/null \
    && export EPSILON_LEDGER_DATABASE_URL=sqlite:///migrated.db \
    && python -c 'from alembic import command; from app.persistence.schema import alembic_config as config; command.upgrade(config(), "head")' \
    && python -c 'import app.http.server, app.service.signing.ed25519, httptools, psycopg, scipy.fft, scipy.optimize, scipy.special, uvloop' \
    && install --directory --owner 10001 --group 10001 --mode 0700 /empty/data

# Two layers of its own, and none of the base image's: those would keep what is removed above.
FROM scratch
COPY --from=system / /
COPY --from=build /opt/epsilon-ledger /opt/epsilon-ledger
COPY --from=build --chown=10001:10001 /empty /
# One arena for all threads: more of them keep 10 MB that nobody uses.
ENV PATH=/opt/epsilon-ledger/bin:/usr/local/bin:/usr/bin:/bin \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 \
    MALLOC_ARENA_MAX=1 \
    EPSILON_LEDGER_DATABASE_URL=sqlite:////data/epsilon-ledger.db
USER 10001:10001
WORKDIR /data
# A local file system: SQLite's write-ahead log does not work over a network.
VOLUME /data
EXPOSE 8000
# buildah and podman keep it with --format docker only.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
CMD ["epsilon-ledger", "serve", "--host", "0.0.0.0", "--port", "8000"]
