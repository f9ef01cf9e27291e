# The service as an image. Built so far with buildah, over a stand-in for the base image: Debian 12 with its own Python 3.11.
# tests/packaging runs the steps without an engine.
#
#   docker build --tag epsilon-ledger .
#   docker run --name ledger --publish 8000:8000 --volume epsilon-ledger:/data epsilon-ledger
#   docker exec ledger epsilon-ledger org create hospital
#   docker exec ledger epsilon-ledger keys create --org hospital --role admin
#
# deploy/ has a compose file and Kubernetes manifests. By hand, on PostgreSQL, give each call
# --env EPSILON_LEDGER_DATABASE_URL=postgresql://USER@HOST/DATABASE instead of the volume,
# and call `epsilon-ledger migrate` first.

FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# npm fetches Chart.js, for the build alone.
RUN apt-get update && apt-get install --yes --no-install-recommends npm
RUN python -m venv /opt/build /opt/epsilon-ledger

# First what seldom changes: the dependencies, each by its hash.
COPY requirements.lock requirements-charts.lock requirements-dev.lock ./
RUN /opt/epsilon-ledger/bin/python -m pip install --require-hashes --requirement requirements.lock
# Pictures of charts for the API need 93 MB more: docker build --build-arg CHARTS=yes
ARG CHARTS=
RUN test -z "$CHARTS" || /opt/epsilon-ledger/bin/python -m pip install --no-deps --require-hashes --requirement requirements-charts.lock
# The build backend stands in the development lock. Should it come to need another package, pip stops here and names it.
RUN awk '/^[a-z]/ { kept = /^(hatch-fancy-pypi-readme|hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } kept' requirements-dev.lock > build.lock \
    && /opt/build/bin/python -m pip install --require-hashes --requirement build.lock

COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY web web
COPY app app
COPY migrations migrations
RUN /opt/build/bin/python -m hatchling build --target wheel --directory wheels \
    && /opt/epsilon-ledger/bin/python -m pip install --no-deps --no-index wheels/*.whl

FROM python:3.11-slim-bookworm
# The ids are fixed, so that a volume keeps its owner over new images.
RUN groupadd --gid 10001 ledger \
    && useradd --uid 10001 --gid ledger --no-create-home --home-dir /data --shell /usr/sbin/nologin ledger \
    && install --directory --owner ledger --group ledger --mode 0700 /data
COPY --from=build /opt/epsilon-ledger /opt/epsilon-ledger
ENV PATH=/opt/epsilon-ledger/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp/matplotlib \
    EPSILON_LEDGER_DATABASE_URL=sqlite:////data/epsilon-ledger.db
USER 10001:10001
WORKDIR /data
# A local file system: SQLite's write-ahead log does not work over a network.
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
CMD ["epsilon-ledger", "serve", "--host", "0.0.0.0", "--port", "8000"]
