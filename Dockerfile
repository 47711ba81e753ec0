# `worldloom serve` for a bundle, and, with --target studio, `worldloom studio` for a folder of runs.
# The token comes from the environment or a secret, never the image; compose.yaml starts either.
#   docker build -t worldloom-serve .
#   docker run -p 8080:8080 -e WORLDLOOM_TOKEN -v $PWD/bundle:/bundle:ro -v audit:/audit worldloom-serve
FROM python:3.12-slim AS base
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir '.[serve]'
RUN useradd --create-home server && mkdir /audit /runs && chown server /audit

FROM base AS studio
RUN pip install --no-cache-dir '.[serve,arc,robot]'
USER server
# Where games are saved.
WORKDIR /home/server
EXPOSE 8090
ENTRYPOINT ["worldloom", "studio", "/runs", "--host", "0.0.0.0", "--port", "8090", "--no-open", "--token-file", "/run/secrets/token"]

FROM base AS serve
USER server
EXPOSE 8080
VOLUME ["/audit"]
ENTRYPOINT ["worldloom", "serve", "/bundle", "--host", "0.0.0.0", "--log", "/audit/audit.jsonl"]
