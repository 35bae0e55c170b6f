#!/bin/sh
# Starts vLLM on one node of a group: the leader serves, all others work for it.
set -eu

if [ "$LWS_WORKER_INDEX" != 0 ]; then
    set -- --headless "$@"
fi
exec vllm serve "${MODEL:-/models/model}" \
    --tensor-parallel-size 8 \
    --pipeline-parallel-size "$LWS_GROUP_SIZE" \
    --nnodes "$LWS_GROUP_SIZE" \
    --node-rank "$LWS_WORKER_INDEX" \
    --master-addr "$LWS_LEADER_ADDRESS" \
    "$@"
