//! Speed of a model's shape with random weights, through the trait: Qwen2-7B with INT4 weights in groups of 32.
//!
//! ```text
//! cargo run --release -p trine-wgpu --example shape [-- --layers N] [--device N|NAME] [--vocabulary N]
//! ```
//!
//! It prints the device's copy bandwidth, decode and prefill rates with the share of that bandwidth that the bytes of weights,
//! keys and values take, and what each op took by the device's own clock. The logits are read after each step.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use trine_backend::Backend;
use trine_backend::shape_bench::{Matrices, Model, Sizes, rows};
use trine_wgpu::{Options, Wgpu};

/// Decode steps of a measurement.
const STEPS: usize = 100;
const REPETITIONS: usize = 5;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let number = |name: &str, default: usize| value(name).map_or(Ok(default), |text| text.parse());
    let of = Sizes::QWEN2_7B;
    let (layers, vocabulary) = (number("--layers", of.layers)?, number("--vocabulary", of.vocabulary)?);
    let sizes = Sizes { layers, vocabulary, ..of };
    let options = Options { device: value("--device").cloned(), ..Options::default() };

    let mut backend = Wgpu::open(&options)?;
    let info = backend.info();
    println!("{}", info.name);
    info.facts.iter().for_each(|(name, fact)| println!("  {name}: {fact}"));
    let bandwidth = backend.copy_bandwidth(256 << 20)?;
    println!("copy bandwidth {:.0} GB/s", bandwidth / 1e9);

    let start = Instant::now();
    let matrices = Matrices::new(&sizes);
    let mut model = Model::new(backend, &matrices, sizes)?;
    println!("{layers} layers loaded in {:.1} s", start.elapsed().as_secs_f64());
    fixed_cost(&mut model, sizes.hidden)?;
    let mut logits = vec![0.0; vocabulary];
    let mut read = |model: &mut Model<Wgpu>| model.backend.read(&model.logits, &mut logits);
    let speed = model.decode(0, STEPS, &mut read)?;
    println!("decode: {speed}; {}", speed.of_copy(bandwidth));
    println!("prefill of {}: {}", sizes.prompt, model.prefill(REPETITIONS, read)?);
    assert!(logits.iter().all(|logit| logit.is_finite()), "a logit is not finite");
    drop(model);

    let sizes = Sizes { layers: layers.min(4), ..sizes };
    let options = Options { profile: true, ..options };
    let mut model = Model::new(Wgpu::open(&options)?, &matrices, sizes)?;
    for (position, count) in [(0, 1), (100, 1), (1000, 1), (0, sizes.prompt)] {
        println!("{count} tokens from position {position}, {} layers, by the device's clock:", sizes.layers);
        op_times(&mut model, position, count)?;
    }
    Ok(())
}

/// What a step costs that does next to nothing.
fn fixed_cost(model: &mut Model<Wgpu>, hidden: usize) -> Result<()> {
    const STEPS: usize = 200;
    let mut out = vec![0.0; hidden];
    let mut start = Instant::now();
    for step in 0..STEPS + 10 {
        if step == 10 {
            start = Instant::now();
        }
        model.backend.step(&rows(0, 1), |b| b.embed(&mut model.x, &model.embedding))?;
        model.backend.read(&model.x, &mut out)?;
    }
    println!("a step of one op, and its read: {:.1} us", 1e6 * start.elapsed().as_secs_f64() / STEPS as f64);
    Ok(())
}

/// Times of each op, told apart by the op before it: products of one shape may differ in what they wait for.
fn op_times(model: &mut Model<Wgpu>, position: usize, count: usize) -> Result<()> {
    let mut sums: BTreeMap<String, (usize, f64)> = BTreeMap::new();
    for step in 0..REPETITIONS + 3 {
        model.step(&rows(position, count))?;
        let mut before = "the start";
        for time in model.backend.op_times()?.into_iter().filter(|_| step >= 3) {
            let sum = sums.entry(format!("{} {:?} after {before}", time.name, time.workgroups)).or_default();
            *sum = (sum.0 + 1, sum.1 + time.nanoseconds);
            before = time.name;
        }
    }
    for (name, (count, nanoseconds)) in sums {
        println!("  {name:<44} {:>3} times, {:>9.1} us each", count / REPETITIONS, nanoseconds / count as f64 / 1e3);
    }
    Ok(())
}
