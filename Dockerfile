# The server, from this checkout.
#   docker build -t ferrum .
#   docker run -p 127.0.0.1:8000:8000 -v ferrum-models:/home/ferrum/.cache ferrum serve Qwen/Qwen3-0.6B --host 0.0.0.0
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY native native
COPY src src
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[server,otel]" && rm -rf /wheels \
    && useradd --create-home ferrum
USER ferrum
WORKDIR /home/ferrum
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --start-period=120s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["ferrum"]
CMD ["serve", "--host", "0.0.0.0"]
