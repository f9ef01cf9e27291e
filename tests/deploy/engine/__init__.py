"""The compose file and the Kubernetes manifests, started as a whole: `python -m tests.deploy.engine`."""
