# One image for both terminals. The CPU image runs the demo. The CUDA wheels include their own libraries; the host needs driver 580.
#
#   docker build -t hanabi-grpo .                                docker run -it hanabi-grpo bash tools/demo.sh
#   docker build -t hanabi-grpo --build-arg EXTRA=serve .        docker run -it --gpus all --shm-size=8g --network host hanabi-grpo
#
# This image has not been built, because no Docker engine was available. Its steps were run by hand in an empty folder, for the CPU. The base image
# includes gcc and Python's headers, which Triton needs.
FROM python:3.12-bookworm
ARG EXTRA=cpu
ENV SETUP_EXTRA=${EXTRA} PYTHONUNBUFFERED=1
WORKDIR /hanabi_grpo
RUN pip install --no-cache-dir uv
# Packages first, so that a change to the code alone does not install them again.
COPY pyproject.toml README.md LICENSE ./
COPY tools/setup.sh tools/setup.sh
COPY src/hanabi_grpo/__init__.py src/hanabi_grpo/__init__.py
RUN bash tools/setup.sh
COPY . .
RUN bash tools/setup.sh
CMD ["bash"]
