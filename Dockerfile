# Serves the embedded checkpoints, or those that the arguments name (docs/deploy.md).
#
#   docker build -t izwi .                            # CPU
#   docker build -t izwi:cuda --build-arg DEVICE=cuda .
#   docker build -t izwi:otel --build-arg EXTRAS=otel .   # with an extra of pyproject.toml
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
ARG DEVICE=cpu
RUN python -m venv /opt/izwi
ENV PATH=/opt/izwi/bin:$PATH
WORKDIR /src
COPY constraints.txt .
# torch has its own layer, which is cached when only the code changes; PyPI's build includes CUDA
RUN case "$DEVICE" in \
      cpu) index=https://download.pytorch.org/whl/cpu ;; \
      cuda) index=https://pypi.org/simple ;; \
      *) echo "DEVICE must be cpu or cuda, got $DEVICE" >&2; exit 1 ;; \
    esac \
 && pip install --no-cache-dir --index-url "$index" "$(grep '^torch==' constraints.txt)"
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt .
ARG EXTRAS=
RUN if [ -n "$EXTRAS" ]; then \
      pip install --no-cache-dir --constraint constraints.txt ".[$EXTRAS]"; \
    fi

FROM python:${PYTHON}-slim
ARG DEVICE=cpu
# Triton compiles a launcher for each kernel when it first runs
RUN if [ "$DEVICE" = cuda ]; then \
      apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
      && rm -rf /var/lib/apt/lists/*; \
    fi
RUN useradd --uid 10001 --create-home izwi && mkdir /data && chown izwi:izwi /data
COPY --from=build /opt/izwi /opt/izwi
ENV PATH=/opt/izwi/bin:$PATH IZWI_HOME=/data HF_HOME=/data/huggingface
USER izwi
# voices, keys, quotas and downloaded checkpoints
VOLUME /data
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", \
  "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=5)"]
# `docker stop` kills after 10 s: requests in flight have 4 s to finish, then they are cut off
STOPSIGNAL SIGTERM
ENTRYPOINT ["izwi", "serve", "--host", "0.0.0.0", "--drain-s", "4"]
CMD []
