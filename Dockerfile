# Two images: `server`, and `trainer` with the client and the demonstration.

FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/rollserve
ENV PATH=/opt/rollserve/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
RUN pip install --constraint constraints.txt pip
COPY client client
RUN pip install --constraint constraints.txt --build-constraint constraints.txt ./client

FROM build AS build-server
# EnvPool, which `atari,envpool,mujoco` adds, takes 740 MB.
ARG EXTRAS=atari,mujoco
COPY server server
RUN pip install --constraint constraints.txt --build-constraint constraints.txt "./server[$EXTRAS]"

FROM build AS build-trainer
RUN pip install --constraint constraints.txt matplotlib rich

FROM python:3.11-slim-bookworm AS run
RUN useradd --create-home rollserve
ENV PATH=/opt/rollserve/bin:$PATH PYTHONUNBUFFERED=1
USER rollserve
WORKDIR /home/rollserve

FROM run AS trainer
COPY --from=build-trainer /opt/rollserve /opt/rollserve
COPY examples /opt/examples
ENTRYPOINT ["python", "/opt/examples/cartpole.py"]

FROM run AS server
COPY --from=build-server /opt/rollserve /opt/rollserve
ENV ROLLSERVE_LISTEN=0.0.0.0:50051
EXPOSE 50051
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 \
    CMD ["rollserve", "status", "127.0.0.1:50051", "--timeout", "4"]
ENTRYPOINT ["rollserve-server"]
