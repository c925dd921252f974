//! Speed of a model's shape with random weights, through the trait: Qwen2-7B with INT4 weights in groups of 32.
//!
//! ```text
//! cargo run --release -p trine-cuda-orin --example shape [-- --layers N] [--vocabulary N] [--depth N,…] [--kernel o1,o2,…]
//!     [--device N|NAME] [--profile]
//! ```
//!
//! It prints the speed of a copy, then of decoding at each depth (after so many tokens) and of prefill, with the share of the
//! copy's speed that the bytes of weights, keys and values take; `--profile` adds what each kernel took by itself. A token is
//! read after each step, as greedy decoding does.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use trine_backend::shape_bench::{Matrices, Model, Sizes};
use trine_backend::{Backend, Error as Fault};
use trine_cuda_orin::{CudaOrin, Options};

/// Decode steps of a measurement.
const STEPS: usize = 128;
const REPETITIONS: usize = 5;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let number = |name: &str, default: usize| value(name).map_or(Ok(default), |text| text.parse());
    let of = Sizes::QWEN2_7B;
    let (layers, vocabulary) = (number("--layers", of.layers)?, number("--vocabulary", of.vocabulary)?);
    let depths: Vec<usize> = value("--depth")
        .map_or("0,512", String::as_str)
        .split(',')
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?;
    let kernels: Vec<Option<&str>> =
        value("--kernel").map_or(vec![None], |list| list.split(',').map(Some).collect::<Vec<_>>());
    let profile = arguments.iter().any(|argument| argument == "--profile");

    let context = depths.iter().copied().max().unwrap_or(0).max(of.prompt) + STEPS;
    let sizes = Sizes { layers, vocabulary, context, ..of };
    let matrices = Matrices::new(&sizes);
    for kernel in kernels {
        let rows = kernel.map(str::parse).transpose()?;
        let options = Options { device: value("--device").cloned(), rows, ..Options::from_environment() };
        let mut backend = CudaOrin::open(&options)?;
        let info = backend.info();
        println!("{}, kernel {}", info.name, kernel.unwrap_or("by itself"));
        let copy = backend.limits()?.map_or(f64::NAN, |limits| limits.copy_bandwidth);
        println!("copy {:.0} GB/s", copy / 1e9);
        let start = Instant::now();
        let mut model = Model::new(backend, &matrices, sizes)?;
        println!("{layers} layers loaded in {:.1} s", start.elapsed().as_secs_f64());
        println!("prefill of {}: {}", sizes.prompt, model.prefill(REPETITIONS, read_token)?);
        kernel_times(&mut model, copy, profile)?;
        for &depth in &depths {
            let speed = model.decode(depth, STEPS, read_token)?;
            println!("decode at {depth}: {speed}; {}", speed.of_copy(copy));
            kernel_times(&mut model, copy, profile)?;
        }
    }
    Ok(())
}

/// Finds the most probable token.
fn read_token(model: &mut Model<CudaOrin>) -> std::result::Result<(), Fault> {
    let mut token = [None];
    model.backend.read_largest(&model.logits, model.sizes().vocabulary, &mut token)?;
    token[0].map(|_| ()).ok_or_else(|| Fault::Device("no logit is a number".into()))
}

/// The kernels of the last step, each by itself.
fn kernel_times(model: &mut Model<CudaOrin>, copy: f64, shown: bool) -> Result<()> {
    let launches = model.backend.profile()?.len();
    println!("  {launches} launches");
    if !shown {
        return Ok(());
    }
    let mut sums: BTreeMap<String, (usize, f64, u64)> = BTreeMap::new();
    for time in (0..REPETITIONS).map(|_| model.backend.profile()).collect::<std::result::Result<Vec<_>, _>>()?.concat()
    {
        let sum = sums.entry(time.kernel).or_default();
        *sum = (sum.0 + 1, sum.1 + time.nanoseconds, sum.2 + time.bytes);
    }
    let all: f64 = sums.values().map(|sum| sum.1).sum();
    println!("  {:.1} us one by one", all / 1e3 / REPETITIONS as f64);
    for (name, (count, nanoseconds, bytes)) in sums {
        let speed = bytes as f64 / nanoseconds;
        let rate = if bytes > 0 {
            format!("{speed:>6.0} GB/s, {:>5.1} % of a copy", 1e11 * speed / copy)
        } else {
            String::new()
        };
        println!(
            "  {name:<44} {:>4} times {:>9.2} us {:>5.1} % {rate}",
            count / REPETITIONS,
            nanoseconds / count as f64 / 1e3,
            100.0 * nanoseconds / all
        );
    }
    Ok(())
}
