# The appliance in one image: Debian's Python, one environment, the built-in model. Needs BuildKit (Docker Engine 20.10 or later).
# What changes seldom comes first: a change of code rebuilds in seconds, a change of requirements.txt in minutes.

# -- system: what is in every stage. gcc and the Python headers stay at run time, because Triton compiles a launcher in C for each
#    kernel it meets on a card.
FROM debian:trixie-slim AS system
COPY certs/ /usr/local/share/ca-certificates/office/
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates gcc libc6-dev python3 python3-dev python3-venv \
    && update-ca-certificates \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/strata/bin:$PATH

# -- environment: every pinned package, checked against its hash; by far the largest layer
FROM system AS environment
RUN python3 -m venv /opt/strata
COPY requirements.txt /tmp/requirements.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    sed '/^# tests only/,$d' /tmp/requirements.txt > /tmp/run.txt \
    && pip install --disable-pip-version-check --require-hashes -r /tmp/run.txt \
    && rm /tmp/run.txt /tmp/requirements.txt

# -- package: the project as a wheel; this stage itself is not shipped
FROM environment AS package
WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY appliance/ appliance/
COPY kernels/ kernels/
COPY setup_wizard/ setup_wizard/
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# -- what is shipped
FROM environment
# Any user id may run the image: what has to be written is in two volumes that everybody may write, and in /tmp.
# The file /etc/strata-image tells the commands that they are in the image (default rig: /config/rig.toml).
RUN useradd --uid 1000 --home-dir /cache --no-create-home --shell /usr/sbin/nologin strata \
    && mkdir /config /cache /models \
    && chmod 0777 /config /cache \
    && touch /etc/strata-image
RUN --mount=type=bind,from=package,source=/wheels,target=/wheels \
    pip install --disable-pip-version-check --no-cache-dir --no-deps --no-index /wheels/*.whl
ENV HOME=/cache \
    TRITON_CACHE_DIR=/cache/triton \
    NUMBA_CACHE_DIR=/cache/numba \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HUB_OFFLINE=1
VOLUME ["/config", "/cache"]
WORKDIR /config
USER 1000
EXPOSE 8080
STOPSIGNAL SIGTERM
# A model of 70 GB takes minutes to load; until the start period is over a failed check does not count.
HEALTHCHECK --interval=5s --timeout=5s --start-period=20m --retries=3 CMD ["strata", "health"]
CMD ["strata", "serve"]
