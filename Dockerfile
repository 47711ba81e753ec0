# `worldloom serve` for a bundle. The token comes from the environment or a secret, never the image:
#   docker build -t worldloom-serve .
#   docker run -p 8080:8080 -e WORLDLOOM_TOKEN -v $PWD/bundle:/bundle:ro -v audit:/audit worldloom-serve
FROM python:3.12-slim
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir '.[serve]'
RUN useradd --create-home server && mkdir /audit && chown server /audit
USER server
EXPOSE 8080
VOLUME ["/audit"]
ENTRYPOINT ["worldloom", "serve", "/bundle", "--host", "0.0.0.0", "--log", "/audit/audit.jsonl"]
