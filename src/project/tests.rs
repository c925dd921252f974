use trine_backend::Format;

use super::*;
use crate::shapes::Shape;

fn seed_model() -> Model {
    let int4: Format = "int4-row".parse().unwrap();
    Model::new(&Shape::find("qwen2-7b").unwrap().config().unwrap(), "qwen2-7b", int4, int4)
}

fn orin() -> Device {
    Device::find("agx-orin-64").unwrap()
}

/// The mean depth of the published runs: 474 tokens after a prompt of some 20.
const DEPTH: usize = 20 + 474 / 2;

#[test]
fn the_seed_comes_out_as_published() {
    for rows in [1, 2, 4] {
        let engine = Engine::Seed(rows);
        let projection = Projection::new(orin(), engine, &seed_model(), DEPTH).unwrap();
        let ratio = projection.rates[1] / engine.published().unwrap();
        assert!(
            (0.85..=1.15).contains(&ratio),
            "{engine}: {:?} tok/s, {ratio:.3} of what was measured",
            projection.rates
        );
        assert!(projection.rates.is_sorted(), "{:?}", projection.rates);
    }
}

#[test]
fn the_seed_reads_what_its_format_takes() {
    let projection = Projection::new(orin(), Engine::Seed(4), &seed_model(), 0).unwrap();
    // 28 layers of 233.05 M weights and 545.0 M of the head, half a byte each, and an f32 scale a row.
    let weights = 28.0 * 233_046_016.0 + 544_997_376.0;
    let rows = 28.0 * (4608.0 + 3584.0 + 37888.0 + 3584.0) + 152_064.0;
    assert_eq!(projection.bytes, weights / 2.0 + 4.0 * rows);
}

#[test]
fn a_kernel_is_bound_by_what_is_scarce() {
    let chain = Chain { memory: 1.0, cache: 0.0, cycles: 0.0 };
    let kernel = |bytes: f64, issue: f64, resident: u32| Kernel {
        name: "test".into(),
        launches: 1,
        blocks: 16.0 * 1000.0,
        resident,
        bytes,
        issue,
        chain,
    };
    let time = |kernel: &Kernel| kernel.time(&orin(), &Assumptions::LIKELY);
    let streams = time(&kernel(1e5, 100.0, 4));
    assert_eq!(streams.bound, Bound::Memory);
    let floor = 16.0 * 1000.0 * 1e5 / (0.77 * 204.8e9);
    assert!((1.0..1.02).contains(&(streams.seconds / floor)), "{}", streams.seconds / floor);
    assert_eq!(time(&kernel(10.0, 1e5, 4)).bound, Bound::Issue);
    // One block at a time, which waits 700 ns for 10 bytes.
    let waits = time(&kernel(10.0, 10.0, 1));
    assert_eq!(waits.bound, Bound::Latency);
    assert!((1.0..1.02).contains(&(waits.seconds / (1000.0 * 700e-9))), "{}", waits.seconds);
}

#[test]
fn few_blocks_take_as_long_as_one() {
    let chain = Chain { memory: 10.0, cache: 0.0, cycles: 0.0 };
    let kernel =
        |blocks| Kernel { name: "test".into(), launches: 1, blocks, resident: 8, bytes: 0.0, issue: 0.0, chain };
    let time = |blocks| kernel(blocks).time(&orin(), &Assumptions::LIKELY).seconds;
    assert!((time(1.0) - 7e-6).abs() < 1e-12);
    assert!((time(128.0) - 7e-6).abs() < 1e-12);
    assert!((time(256.0) - 14e-6).abs() < 1e-12);
}

#[test]
fn residency_is_what_the_scarcest_resource_allows() {
    assert_eq!(Device::resident(128, 32, 0), 12);
    assert_eq!(Device::resident(128, 128, 0), 4);
    assert_eq!(Device::resident(64, 32, 0), 16);
    assert_eq!(Device::resident(256, 32, 80 << 10), 2);
    // More than there is: the kernel could not run at all, but a projection is no place to panic.
    assert_eq!(Device::resident(1024, 255, 0), 1);
}

#[test]
fn queues_keep_to_their_bounds() {
    // Never above either bound of a closed network; exact for one customer, and with no time to think.
    for customers in 1..20 {
        let rate = queue::throughput(customers, 100.0, [3.0, 7.0]);
        assert!(rate <= 1.0 / 7.0 && rate <= f64::from(customers) / 110.0 + 1e-12, "{customers}: {rate}");
    }
    assert!((queue::throughput(1, 100.0, [3.0, 7.0]) - 1.0 / 110.0).abs() < 1e-12);
    assert!((queue::throughput(5, 0.0, [4.0]) - 0.25).abs() < 1e-12);
}

#[test]
fn our_kernels_read_the_format_and_are_bound_by_memory() {
    let format: Format = "int4-g32".parse().unwrap();
    let model = Model::new(&Shape::find("qwen2-7b").unwrap().config().unwrap(), "qwen2-7b", format, format);
    let projection = Projection::new(orin(), Engine::Trine(2), &model, 0).unwrap();
    // No row of this model is padded by more than a step: what is read is the format and keys and values of one position.
    let excess = projection.bytes / model.weight_bytes();
    assert!((1.0..1.01).contains(&excess), "{excess}");
    for name in ["norm, gate_up, gate", "down, add", "norm, lm_head"] {
        let line = projection.lines.iter().find(|line| line.kernel.name == name).unwrap();
        assert_eq!(line.bound, Bound::Memory, "{name}");
    }
    // Never faster than the bytes at the assumed share of the bandwidth.
    assert!(projection.share() < Assumptions::LIKELY.share);
    let deep = Projection::new(orin(), Engine::Trine(2), &model, 4096).unwrap();
    assert!(deep.rates[1] < projection.rates[1]);
    let larger = Model { body: "int4-g128".parse().unwrap(), ..model.clone() };
    assert!(Projection::new(orin(), Engine::Trine(2), &larger, 0).unwrap().rates[1] > projection.rates[1]);
    let row = Model { head: "int8".parse().unwrap(), ..model };
    let error = Projection::new(orin(), Engine::Trine(2), &row, 0).unwrap_err().to_string();
    assert!(error.contains("not for int8"), "{error}");
}
