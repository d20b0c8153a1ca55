#!/bin/sh
# Starting inputs for the fuzz targets: pieces of the recordings and CPython's own pickles.
set -eu
cd "$(dirname "$0")"
traces=../traces
data=../crates/millpond-trace/tests/data
for target in pickle event_csv ordered_csv rmm_log any; do
    mkdir -p "corpus/$target"
done
for pickle in "$data"/*.pickle; do
    tail -c +3 "$pickle" > "corpus/pickle/$(basename "$pickle")"
    cp "$pickle" corpus/any/
done
rows() { # rows FILE: some rows, without the header
    gzip -dc "$traces/$1" | sed -n '2,9p;2000,2040p'
}
rows gnn_sampled.csv.gz > corpus/event_csv/rows
rows offload_streams.ordered.csv.gz > corpus/ordered_csv/rows
rows fsdp_prefetch.ordered.csv.gz > corpus/ordered_csv/rows3
rows rmm_cupy_log.csv.gz > corpus/rmm_log/rows
for text in gnn_sampled.csv.gz offload_streams.ordered.csv.gz rmm_cupy_log.csv.gz; do
    gzip -dc "$traces/$text" | sed -n '1,40p' > "corpus/any/${text%.gz}"
    gzip -c "corpus/any/${text%.gz}" > "corpus/any/$text"
done
