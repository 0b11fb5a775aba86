# Three images: `server`, `worker`, a node of a Ray cluster for workers, and `trainer`, with the client and an example.
# `server-gpu` and `worker-gpu` also run models on CUDA. docs/deployment.md describes them.

# A release pins the base by its digest: --build-arg BASE=python:3.11-slim-bookworm@sha256:…
ARG BASE=python:3.11-slim-bookworm

FROM $BASE AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PIP_ONLY_BINARY=:all:
RUN python -m venv /opt/rollserve && python -m venv /opt/build
ENV PATH=/opt/rollserve/bin:$PATH
WORKDIR /src
COPY requirements.lock deploy/requirements.py deploy/layer.sh ./
# Older pips take no hashes from a file of constraints.
RUN sed -n '/^pip==/,/[^\\]$/p' requirements.lock > pip.txt \
    && pip install --require-hashes --no-deps --no-compile --requirement pip.txt \
    && /opt/build/bin/pip install --require-hashes --no-deps --requirement pip.txt \
    && /opt/build/bin/pip install --require-hashes --constraint requirements.lock hatchling
COPY client/pyproject.toml client/pyproject.toml
RUN python requirements.py client > client.txt \
    && pip install --no-compile --require-hashes --constraint requirements.lock --requirement client.txt

# Two steps for each image, and two layers of it: what is installed from the index, the larger one, stays the same to the
# last byte while requirements.lock does, wherever it is built, so that a new version of the code pulls a few megabytes.
# For that, files get one date, which compiled modules have in them, too.
FROM build AS trainer-requirements
RUN pip install --no-compile --require-hashes --constraint requirements.lock matplotlib rich \
    && mkdir -p /layer/opt && mv /opt/rollserve /layer/opt && /src/layer.sh

FROM build AS trainer-code
COPY LICENSE LICENSE
COPY protos protos
COPY client client
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels ./client \
    && pip install --no-deps --no-compile --no-index --root /layer wheels/*.whl \
    && /src/layer.sh

FROM build AS server-requirements
# EnvPool, which `atari,envpool,mujoco` adds, takes 740 MB.
ARG EXTRAS=atari,mujoco
COPY server/pyproject.toml server/pyproject.toml
# rlcard, which `pettingzoo` adds, comes as source alone.
RUN python requirements.py server "$EXTRAS" > server.txt \
    && pip install --no-compile --no-binary rlcard --require-hashes --constraint requirements.lock --requirement server.txt \
    && mkdir -p /layer/opt && mv /opt/rollserve /layer/opt && /src/layer.sh

FROM build AS server-code
COPY LICENSE LICENSE
COPY protos protos
COPY client client
COPY server server
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels ./client ./client/hosts/python ./server \
    && pip install --no-deps --no-compile --no-index --root /layer wheels/*.whl \
    && /src/layer.sh

# ONNX Runtime with CUDA, in place of the one that other images have.
FROM build AS gpu-requirements
COPY requirements-gpu.lock ./
RUN pip install --no-deps --no-compile --require-hashes --root /layer --requirement requirements-gpu.lock \
    && /src/layer.sh

FROM $BASE AS run
# Bases come without compiled modules of the standard library, and containers cannot write them: each process would
# compile what it imports. A module that cannot be compiled is compiled when it is imported, as before.
RUN python -m compileall -qq "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" || true
# Volumes at these folders belong to the user, too, once Docker has made them.
RUN useradd --uid 10001 --create-home rollserve \
    && install -d -m 700 -o rollserve -g rollserve /secrets/authority /secrets/client /secrets/cluster /secrets/gateway \
        /volumes/authority /volumes/client-secrets /volumes/cluster-secrets /volumes/gateway-secrets \
    && install -d -o rollserve -g rollserve /secrets/grafana /audit /output /data /saved \
        /volumes/grafana-secrets /volumes/audit /volumes/data /volumes/saved
ENV PATH=/opt/rollserve/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /home/rollserve
LABEL org.opencontainers.image.title=Rollserve \
    org.opencontainers.image.version=0.3.0 \
    org.opencontainers.image.licenses=Apache-2.0

FROM run AS trainer
COPY --from=trainer-requirements /layer /
COPY --from=trainer-code /layer /
COPY examples /opt/examples
ENTRYPOINT ["python", "/opt/examples/cartpole.py"]
ARG COMMIT=unknown
LABEL org.opencontainers.image.revision=$COMMIT

FROM run AS run-server
COPY --from=server-requirements /layer /
COPY --from=server-code /layer /
COPY deploy/health.py deploy/ray-node.sh deploy/secrets.sh /opt/deploy/
# Ray keeps logs of each process, which lie in memory where /tmp does.
ENV RAY_USAGE_STATS_ENABLED=0 RAY_ROTATION_MAX_BYTES=4194304 RAY_ROTATION_BACKUP_COUNT=1 RAY_STORE_BYTES=268435456

FROM run-server AS worker
HEALTHCHECK --interval=2s --timeout=15s --start-period=60s --retries=3 \
    CMD ["python", "-IS", "/opt/deploy/health.py", "tcp", "6380"]
ENTRYPOINT ["/opt/deploy/ray-node.sh"]
CMD ["worker"]
ARG COMMIT=unknown
LABEL org.opencontainers.image.revision=$COMMIT

FROM run-server AS server
ENV ROLLSERVE_LISTEN=0.0.0.0:50051 ROLLSERVE_HEALTH_LISTEN=127.0.0.1:50052
EXPOSE 50051
HEALTHCHECK --interval=5s --timeout=15s --start-period=60s --retries=3 \
    CMD ["python", "-I", "/opt/deploy/health.py", "grpc", "50052"]
ENTRYPOINT ["rollserve-server"]
ARG COMMIT=unknown
LABEL org.opencontainers.image.revision=$COMMIT

# NVIDIA's container toolkit brings the driver.
FROM server AS server-gpu
COPY --from=gpu-requirements /layer /
ENV LD_LIBRARY_PATH=/opt/rollserve/lib/python3.11/site-packages/nvidia/cu13/lib:/opt/rollserve/lib/python3.11/site-packages/nvidia/cudnn/lib \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,graphics,utility

FROM worker AS worker-gpu
COPY --from=gpu-requirements /layer /
ENV LD_LIBRARY_PATH=/opt/rollserve/lib/python3.11/site-packages/nvidia/cu13/lib:/opt/rollserve/lib/python3.11/site-packages/nvidia/cudnn/lib \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,graphics,utility
