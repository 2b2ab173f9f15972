# CPU image that serves the embedded checkpoints; give MODEL ids or folders as arguments to `serve`.
FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheel .

FROM python:3.11-slim
RUN useradd --create-home izwi
COPY --from=build /wheel/*.whl /tmp/
# the CPU build of torch, so that the image does not carry CUDA
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu 'torch>=2.11,<2.14' \
 && pip install --no-cache-dir /tmp/*.whl && rm /tmp/*.whl
USER izwi
EXPOSE 8000
HEALTHCHECK CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz')"
ENTRYPOINT ["izwi"]
# a public address needs a key: docker run -e IZWI_API_KEY=... -p 8000:8000 izwi
CMD ["serve", "--host", "0.0.0.0"]
