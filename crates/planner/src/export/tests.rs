//! Exports of plans made by hand.

use expect_test::{Expect, expect};

use super::{ExportTarget, export};
use crate::explain::sample::{FOUR_QWEN3, HOME_70B, Sample, outcome, problem};
use crate::problem::Objective;

fn check(place: (&str, &str), samples: &[Sample], target: ExportTarget, expected: Expect) {
    let (cluster, model) = place;
    let problem = problem(cluster, model, Objective::Latency);
    let outcome = outcome(&problem, samples).expect("a plan");
    expected.assert_eq(&export(&problem, &outcome, target, "my model.gguf").text());
}

const HOME: (&str, &str) = ("prima-home", "llama-3-70b-q4_k_m");
const FOUR: (&str, &str) = ("e2llm-4", "qwen3-30b-a3b-q4_k_m");

#[test]
fn home_for_llama_cpp() {
    check(
        HOME,
        HOME_70B,
        ExportTarget::LlamaCpp,
        expect![[r#"
        # device names stand for addresses
        # on D2
        rpc-server -H D2 -p 50052 -d CPU,CUDA0 -c
        # on D3
        rpc-server -H D3 -p 50052 -d CPU,CUDA0 -c
        # on D4
        rpc-server -H D4 -p 50052 -d CPU -c
        # on D1
        llama-server -m 'my model.gguf' -ngl 81 --rpc D2:50052,D3:50052,D4:50052 --split-mode layer --tensor-split 5,13,40,20,1,2 -c 4096 -np 1 -ub 512 -fa on --fit off --host D1 --port 8080
        # what llama.cpp cannot do of this plan:
        # - D3: an rpc-server reads no layer from disk, so its 26 streamed layers need 13.5 GB of memory that it does not have; it will swap or refuse them
        # - workers do not reach each other: 6 transfers pass the network card of D1 per token instead of 4 around the ring, 18.4 ms instead of 12.3 ms
        # - the GPU layers of D1 come last in the model: remote devices take the layers before them
    "#]],
    );
}

#[test]
fn home_for_prima_cpp() {
    check(
        HOME,
        HOME_70B,
        ExportTarget::PrimaCpp,
        expect![[r#"
        # device names stand for addresses
        # on D2
        llama-cli -m 'my model.gguf' --world 4 --rank 1 --master D1 --next D3 --prefetch -ngl 13
        # on D3
        llama-cli -m 'my model.gguf' --world 4 --rank 2 --master D1 --next D4 --prefetch -ngl 20
        # on D4
        llama-cli -m 'my model.gguf' --world 4 --rank 3 --master D1 --next D1 --prefetch
        # on D1
        llama-server -m 'my model.gguf' --world 4 --rank 0 --master D1 --next D2 --prefetch -lw 1,18,60,1 -ngl 1 -c 4096 -np 1 -ub 512 -fa --host D1 --port 8080
        # what prima.cpp cannot do of this plan:
        # - D3: its 20.5 GB of CPU layers are mapped instead of pinned and streamed; they exceed its memory, so each token reads them anew, about 6.46 s
    "#]],
    );
}

#[test]
fn four_for_llama_cpp() {
    check(
        FOUR,
        FOUR_QWEN3,
        ExportTarget::LlamaCpp,
        expect![[r#"
            # device names stand for addresses
            # on Dev.5
            rpc-server -H Dev.5 -p 50052 -d MTL0 -c
            # on Dev.2
            llama-server -m 'my model.gguf' -ngl 23 --rpc Dev.5:50052 --split-mode layer --tensor-split 16,7 -c 4096 -np 1 -ub 512 -fa on --fit off --host Dev.2 --port 8080
            # on Dev.1
            llama-server -m 'my model.gguf' -ngl 17 -c 16384 -np 4 -ub 512 -fa on --fit off --host Dev.1 --port 8080
            # what llama.cpp cannot do of this plan:
            # - llama.cpp hands no keys and values over: the 1 prefill and 1 decode replicas become independent servers that each do both
            # - the GPU layers of Dev.2 come last in the model: remote devices take the layers before them
        "#]],
    );
}

#[test]
fn four_for_prima_cpp() {
    check(
        FOUR,
        FOUR_QWEN3,
        ExportTarget::PrimaCpp,
        expect![[r#"
        # device names stand for addresses
        # on Dev.5
        llama-cli -m 'my model.gguf' --world 2 --rank 1 --master Dev.2 --next Dev.2 --prefetch -ngl 16
        # on Dev.2
        llama-server -m 'my model.gguf' --world 2 --rank 0 --master Dev.2 --next Dev.5 --prefetch -lw 32,16 -ngl 6 --keep-out-in-cuda -c 4096 -np 1 -ub 512 -fa --host Dev.2 --port 8080
        # on Dev.1
        llama-server -m 'my model.gguf' -ngl 16 --keep-out-in-cuda -c 16384 -np 4 -ub 512 -fa -cb --host Dev.1 --port 8080
        # what prima.cpp cannot do of this plan:
        # - prima.cpp hands no keys and values over: the 1 prefill and 1 decode replicas become independent servers that each do both
    "#]],
    );
}
