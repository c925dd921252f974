//! `trine bench`: speed of prefill and decode, in the manner of llama-bench.

use std::time::Instant;

use serde_json::{Value, json};
use trine_backend::{Backend, DeviceInfo, KernelTime, Limits, Row};

use super::Exit;
use super::args::{BenchArgs, TableOutput, Verbosity};
use super::info::kv_per_position;
use super::output::{count, note, print, print_json, write_file};
use super::plot::{Series, thread_scaling};
use super::progress::{self, Progress};
use crate::energy::Meter;
use crate::engine::{Engine, EngineOptions};
use crate::memory::human;
use crate::model::Config;
use crate::random::split_mix;
use crate::session::Session;
use crate::{Error, Result};

/// A device to measure on, and the kernel that was asked for.
pub(super) struct Setup<O> {
    pub(super) options: O,
    pub(super) kernel: Option<String>,
}

/// Runs the subcommand, on each of `devices`.
pub(super) fn run<B: Backend>(args: &BenchArgs, devices: &[Setup<B::Options>], verbosity: Verbosity) -> Result<Exit> {
    let tests = tests(args);
    check_plot(args)?;
    let meter = Meter::open();
    let files = args.open()?;
    let context = Some(context(&tests, &files.config)?);
    let options = EngineOptions { context, batch: args.batch_size, ..args.formats.engine() };
    let mut table = Vec::new();
    for Setup { options: device, kernel } in devices {
        let mut engine = progress::load::<B>(device, &files, &options, verbosity)?;
        let limits = engine.backend_mut().limits().unwrap_or_else(|why| {
            note(&format!("the speed of a copy can't be measured: {why}"));
            None
        });
        let mut session = Session::new(engine);
        let tokens = random_tokens(session.context(), files.config.vocab);
        let repetitions = args.repetitions.get();
        let mut progress = Progress::new("measuring", (tests.len() * (repetitions + 1)) as u64, verbosity);
        let name = files.path.file_name().unwrap_or(files.path.as_os_str());
        let model = Model { kernel: kernel.clone(), limits, ..Model::of(session.engine(), name, args) };
        let mut repeat = |test: &Test, measure: &mut dyn FnMut() -> Result<Sample>| {
            let mut samples = Vec::with_capacity(repetitions);
            for repetition in 0..=repetitions {
                let sample = measure()?;
                // The first run brings weights and code into the caches.
                if repetition > 0 {
                    samples.push(sample);
                }
                progress.advance(1, |_, _| test.name());
            }
            Ok::<_, Error>(samples)
        };
        let meter = meter.as_ref().ok();
        for test in tests.iter().filter(|test| test.sequences == 1) {
            let samples = repeat(test, &mut || measure(&mut session, test, &tokens, meter))?;
            let kernels = session.engine_mut().backend_mut().profile()?;
            table.push(Line { model: model.clone(), test: *test, samples, kernels });
        }
        // One model at a time.
        drop(session);
        for shared in tests.iter().filter(|test| test.sequences > 1) {
            let (sequences, outputs) = (shared.sequences, shared.sequences);
            let batch = args.batch_size.max(sequences);
            let options = EngineOptions { sequences, outputs, batch, ..options };
            let mut engine = progress::load::<B>(device, &files, &options, verbosity)?;
            let mut logits = vec![0.0; sequences * files.config.vocab];
            let samples = repeat(shared, &mut || measure_shared(&mut engine, shared, &tokens, &mut logits, meter))?;
            let kernels = engine.backend_mut().profile()?;
            table.push(Line { model: model.clone(), test: *shared, samples, kernels });
        }
    }
    tell_energy(&meter, verbosity);
    match args.output {
        TableOutput::Md => {
            print(&markdown(&table))?;
            if args.profile {
                table.iter().try_for_each(|line| print(&kernel_table(line)))?;
            }
        }
        TableOutput::Csv => print(&csv(&table))?,
        TableOutput::Json => print_json(&table.iter().map(Line::json).collect())?,
    }
    if let Some(file) = &args.plot {
        write_file(file, &plot(&table))?;
    }
    Ok(Exit::Success)
}

/// Refuses a plot that would have no lines, before anything is measured.
fn check_plot(args: &BenchArgs) -> Result<()> {
    let mut threads = args.threads.clone();
    threads.sort_unstable();
    threads.dedup();
    if args.plot.is_some() && threads.len() < 2 {
        return Err(Error::Usage("--plot: give several numbers of threads, such as -t 1,2,4".into()));
    }
    Ok(())
}

/// Says whose energy was measured, or why none was.
fn tell_energy(meter: &std::result::Result<Meter, String>, verbosity: Verbosity) {
    match meter {
        Ok(meter) => verbosity.detail(|| format!("joules are those of {}", meter.name())),
        Err(why) if !verbosity.quiet => note(&format!("no joules per token: {why}")),
        Err(_) => {}
    }
}

/// What is measured: so many tokens, after `depth` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Test {
    kind: Kind,
    tokens: usize,
    depth: usize,
    /// Texts that share each step.
    sequences: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Prefill,
    Decode,
}

impl Test {
    /// llama-bench's name: `pp512`, `tg128 @ d1024`; `tg128 x8` for eight texts together.
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Prefill => "pp",
            Kind::Decode => "tg",
        };
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        let together = if self.sequences > 1 { format!(" x{}", self.sequences) } else { String::new() };
        format!("{kind}{}{together}{depth}", self.tokens)
    }
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let of = |kind, counts: &[usize], depth, sequences| {
        let counts = counts.iter().filter(|&&tokens| tokens > 0);
        counts.map(|&tokens| Test { kind, tokens, depth, sequences }).collect::<Vec<_>>()
    };
    let mut tests = Vec::new();
    for sequences in args.slots.iter().map(|slots| slots.get()) {
        for &depth in &args.n_depth {
            if sequences == 1 {
                tests.extend(of(Kind::Prefill, &args.n_prompt, depth, 1));
            }
            tests.extend(of(Kind::Decode, &args.n_gen, depth, sequences));
        }
    }
    tests
}

/// Positions that the longest test takes.
fn context(tests: &[Test], config: &Config) -> Result<usize> {
    let longest = tests.iter().max_by_key(|test| test.depth.saturating_add(test.tokens));
    let Some(test) = longest else {
        return Err(Error::Usage("nothing to measure: give -p or -n more than 0".into()));
    };
    let needed = test.depth.saturating_add(test.tokens);
    if needed > config.context {
        let (name, most) = (test.name(), config.context);
        return Err(Error::Usage(format!(
            "{name} takes {needed} positions and the model has {most}: use less -p, -n or -d"
        )));
    }
    Ok(needed)
}

/// One run of a test.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Tokens per second.
    speed: f64,
    /// Energy, where something tells it.
    joules: Option<f64>,
}

/// Runs a test once.
fn measure<B: Backend>(session: &mut Session<B>, test: &Test, tokens: &[u32], meter: Option<&Meter>) -> Result<Sample> {
    let end = test.depth + test.tokens;
    session.truncate(test.depth);
    if session.tokens().len() < test.depth {
        session.prefill(&tokens[..test.depth], || true)?;
    }
    let energy = meter.map(Meter::start).transpose().map_err(Error::Request)?;
    let start = Instant::now();
    match test.kind {
        Kind::Prefill => {
            session.prefill(&tokens[..end], || true)?;
        }
        Kind::Decode => {
            for &token in &tokens[test.depth..end] {
                session.follow(token)?;
            }
        }
    }
    let speed = test.tokens as f64 / start.elapsed().as_secs_f64();
    let joules = energy.map(|running| running.stop()).transpose().map_err(Error::Request)?;
    Ok(Sample { speed, joules })
}

/// Tokens per second of texts that share each step, together.
fn measure_shared<B: Backend>(
    engine: &mut Engine<B>,
    test: &Test,
    tokens: &[u32],
    logits: &mut [f32],
    meter: Option<&Meter>,
) -> Result<Sample> {
    let mut energy = None;
    let mut rows = Vec::with_capacity(test.sequences);
    let mut start = Instant::now();
    for (position, &token) in tokens.iter().enumerate().take(test.depth + test.tokens) {
        if position == test.depth {
            energy = meter.map(Meter::start).transpose().map_err(Error::Request)?;
            start = Instant::now();
        }
        let output = position >= test.depth;
        rows.clear();
        rows.extend((0..test.sequences as u32).map(|sequence| Row {
            token,
            sequence,
            position: position as u32,
            output,
        }));
        engine.step(&rows)?;
        if output {
            engine.read_logits(logits)?;
        }
    }
    let speed = (test.sequences * test.tokens) as f64 / start.elapsed().as_secs_f64();
    let joules = energy.map(|running| running.stop()).transpose().map_err(Error::Request)?;
    Ok(Sample { speed, joules })
}

/// The same ids on every run and machine.
fn random_tokens(count: usize, vocab: usize) -> Vec<u32> {
    let mut counter = 0;
    (0..count).map(|_| (split_mix(&mut counter) % vocab as u64) as u32).collect()
}

/// What the tests of one session have in common.
#[derive(Clone, Debug)]
struct Model {
    name: String,
    backend: &'static str,
    /// For decoding, and for prefill.
    threads: [String; 2],
    weights: String,
    head: String,
    kv: &'static str,
    batch: usize,
    bytes: u64,
    parameters: u64,
    read_per_token: u64,
    kv_per_position: u64,
    /// The kernel that was asked for.
    kernel: Option<String>,
    limits: Option<Limits>,
}

impl Model {
    fn of<B: Backend>(engine: &Engine<B>, name: &std::ffi::OsStr, args: &BenchArgs) -> Self {
        let (plan, extent) = (engine.plan(), engine.extent());
        Model {
            name: name.to_string_lossy().into_owned(),
            backend: B::NAME,
            threads: threads(&engine.backend().info()),
            weights: plan.body_format.to_string(),
            head: plan.head_format.to_string(),
            kv: args.formats.kv.name(),
            batch: args.batch_size,
            bytes: plan.body + plan.head + plan.vectors,
            parameters: plan.parameters,
            read_per_token: plan.read_per_token,
            kv_per_position: kv_per_position(&extent.kv, extent.kv_format),
            kernel: None,
            limits: None,
        }
    }
}

/// The numbers of threads that the device says it uses for decoding and for prefill.
fn threads(info: &DeviceInfo) -> [String; 2] {
    let fact = |name| info.facts.iter().find(|(fact, _)| fact == name).map(|(_, value)| value.clone());
    let decode = fact("threads").unwrap_or_else(|| "-".into());
    let prefill = fact("batch threads").unwrap_or_else(|| decode.clone());
    [decode, prefill]
}

/// One test and its runs.
#[derive(Clone, Debug)]
struct Line {
    model: Model,
    test: Test,
    samples: Vec<Sample>,
    /// The kernels of the last step.
    kernels: Vec<KernelTime>,
}

impl Line {
    /// The number of threads that the device says it used.
    fn threads(&self) -> &str {
        let [decode, prefill] = &self.model.threads;
        if self.test.kind == Kind::Prefill { prefill } else { decode }
    }

    fn speeds(&self) -> impl Iterator<Item = f64> {
        self.samples.iter().map(|sample| sample.speed)
    }

    /// Mean tokens per second.
    fn mean(&self) -> f64 {
        self.speeds().sum::<f64>() / self.samples.len() as f64
    }

    /// Energy per token, over all runs.
    fn joules_per_token(&self) -> Option<f64> {
        let joules: Option<f64> = self.samples.iter().map(|sample| sample.joules).sum();
        joules.map(|joules| joules / (self.samples.len() * self.test.sequences * self.test.tokens) as f64)
    }

    /// Standard deviation of a sample; 0 for a single run.
    fn deviation(&self) -> f64 {
        let (n, mean) = (self.samples.len(), self.mean());
        let squares: f64 = self.speeds().map(|speed| (speed - mean).powi(2)).sum();
        if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 }
    }

    /// Bytes that decoding a token reads, on average over the test: weights, and keys and values of the tokens up to
    /// and with it. `None` where many tokens share a read.
    fn bytes_per_token(&self) -> Option<u64> {
        let positions = self.test.depth as u64 + (self.test.tokens as u64).div_ceil(2);
        match self.test.kind {
            Kind::Prefill => None,
            Kind::Decode if self.test.sequences > 1 => None,
            Kind::Decode => Some(self.model.read_per_token + self.model.kv_per_position * positions),
        }
    }

    /// Decode's memory traffic in GB/s.
    fn bandwidth(&self) -> Option<f64> {
        self.bytes_per_token().map(|bytes| bytes as f64 * self.mean() / 1e9)
    }

    /// The same as a share of what a copy moves.
    fn share_of_copy(&self) -> Option<f64> {
        let copy = self.model.limits?.copy_bandwidth / 1e9;
        self.bandwidth().map(|speed| speed / copy)
    }

    /// Kernels of a step, where the device tells them.
    fn launches(&self) -> Option<usize> {
        Some(self.kernels.len()).filter(|&count| count > 0)
    }

    fn json(&self) -> Value {
        let (model, test) = (&self.model, &self.test);
        let tokens = |kind| if test.kind == kind { test.tokens } else { 0 };
        json!({
            "test": test.name(),
            "model": model.name,
            "backend": model.backend,
            "threads": self.threads().parse::<u64>().ok(),
            "weights": model.weights,
            "head": model.head,
            "kv": model.kv,
            "batch": model.batch,
            "bytes": model.bytes,
            "parameters": model.parameters,
            "n_prompt": tokens(Kind::Prefill),
            "n_gen": tokens(Kind::Decode),
            "n_depth": test.depth,
            "slots": test.sequences,
            "tokens_per_second": self.mean(),
            "deviation": self.deviation(),
            "samples": self.speeds().collect::<Vec<_>>(),
            "read_per_token": self.bytes_per_token(),
            "gigabytes_per_second": self.bandwidth(),
            "copy_gigabytes_per_second": model.limits.map(|limits| limits.copy_bandwidth / 1e9),
            "share_of_copy": self.share_of_copy(),
            "kernel": model.kernel,
            "launches": self.launches(),
            "kernels": kernels_by_name(&self.kernels).iter().map(KernelSum::json).collect::<Vec<_>>(),
            "joules_per_token": self.joules_per_token(),
        })
    }
}

/// The launches of one kernel.
#[derive(Debug, PartialEq)]
struct KernelSum<'a> {
    name: &'a str,
    launches: usize,
    nanoseconds: f64,
    bytes: u64,
}

impl KernelSum<'_> {
    fn json(&self) -> Value {
        json!({
            "kernel": self.name,
            "launches": self.launches,
            "microseconds": self.nanoseconds / 1e3,
            "bytes": self.bytes,
        })
    }
}

/// The kernels of a step, the one that takes longest first.
fn kernels_by_name(kernels: &[KernelTime]) -> Vec<KernelSum<'_>> {
    let mut sums: Vec<KernelSum<'_>> = Vec::new();
    for KernelTime { kernel: name, nanoseconds, bytes } in kernels {
        match sums.iter_mut().find(|sum| sum.name == name) {
            Some(sum) => {
                sum.launches += 1;
                sum.nanoseconds += nanoseconds;
                sum.bytes += bytes;
            }
            None => sums.push(KernelSum { name, launches: 1, nanoseconds: *nanoseconds, bytes: *bytes }),
        }
    }
    sums.sort_by(|a, b| b.nanoseconds.total_cmp(&a.nanoseconds));
    sums
}

/// The kernels of a test's last step, each run alone.
fn kernel_table(line: &Line) -> String {
    if line.kernels.is_empty() {
        return format!("\n{}: this backend does not tell what its kernels take\n", line.test.name());
    }
    let all: f64 = line.kernels.iter().map(|kernel| kernel.nanoseconds).sum();
    let mut text = format!(
        "\n{}: the last step's kernels one by one, {:.1} us together\n\n\
         | kernel | launches | us each | us | share | GB/s |\n|---|---:|---:|---:|---:|---:|\n",
        line.test.name(),
        all / 1e3
    );
    for sum in kernels_by_name(&line.kernels) {
        let speed = if sum.bytes > 0 { format!("{:.0}", sum.bytes as f64 / sum.nanoseconds) } else { "-".into() };
        text += &format!(
            "| {} | {} | {:.2} | {:.1} | {:.1} % | {speed} |\n",
            sum.name,
            sum.launches,
            sum.nanoseconds / 1e3 / sum.launches as f64,
            sum.nanoseconds / 1e3,
            100.0 * sum.nanoseconds / all
        );
    }
    text
}

/// A column that is there where one of the lines has something to say in it.
type Column = (&'static str, fn(&Line) -> Option<String>);

const OPTIONAL: [Column; 4] = [
    ("kernel", |line| line.model.kernel.clone()),
    ("of a copy", |line| line.share_of_copy().map(|share| format!("{:.0} %", 100.0 * share))),
    ("launches", |line| line.launches().map(|launches| launches.to_string())),
    ("J/token", |line| line.joules_per_token().map(|joules| format!("{joules:.4}"))),
];

/// A table; a column of [`OPTIONAL`] is left out where nothing tells it.
fn markdown(table: &[Line]) -> String {
    let optional: Vec<Column> =
        OPTIONAL.into_iter().filter(|(_, value)| table.iter().any(|line| value(line).is_some())).collect();
    let titles: String = optional.iter().map(|(title, _)| format!(" {title} |")).collect();
    let mut text = format!(
        "| model | size | params | backend | threads | test | t/s | read/token | GB/s |{titles}\n\
         |---|---:|---:|---|---:|---|---:|---:|---:|{}\n",
        "---:|".repeat(optional.len())
    );
    for line in table {
        let model = &line.model;
        text += &format!(
            "| {} {}, head {} | {} | {} | {} | {} | {} | {:.2} ± {:.2} | {} | {} |",
            model.name,
            model.weights,
            model.head,
            human(model.bytes),
            count(model.parameters),
            model.backend,
            line.threads(),
            line.test.name(),
            line.mean(),
            line.deviation(),
            line.bytes_per_token().map_or("-".into(), human),
            line.bandwidth().map_or("-".into(), |speed| format!("{speed:.2}")),
        );
        for (_, value) in &optional {
            text += &format!(" {} |", value(line).unwrap_or("-".into()));
        }
        text += "\n";
    }
    text
}

/// A chart of each test's speed by threads.
fn plot(table: &[Line]) -> String {
    let mut series: Vec<Series> = Vec::new();
    for line in table {
        let Ok(threads) = line.threads().parse() else { continue };
        let name = line.test.name();
        let index = series.iter().position(|series| series.name == name).unwrap_or_else(|| {
            series.push(Series { name, points: Vec::new() });
            series.len() - 1
        });
        series[index].points.push((threads, line.mean()));
    }
    for series in &mut series {
        series.points.sort_by_key(|&(threads, _)| threads);
    }
    let title = table.first().map_or(String::new(), |line| {
        let model = &line.model;
        format!(
            "{} {}, head {}, on {}: tokens per second by threads",
            model.name, model.weights, model.head, model.backend
        )
    });
    thread_scaling(&title, &series)
}

/// The fields of the JSON objects but for `samples` and `kernels`.
fn csv(table: &[Line]) -> String {
    let mut text = String::new();
    for line in table {
        let Value::Object(mut fields) = line.json() else { continue };
        fields.remove("samples");
        fields.remove("kernels");
        if text.is_empty() {
            text = fields.keys().map(String::as_str).collect::<Vec<_>>().join(",") + "\n";
        }
        text += &(fields.values().map(csv_field).collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

/// A value as RFC 4180 has it.
pub(super) fn csv_field(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.contains([',', '"', '\n', '\r']) => format!("\"{}\"", text.replace('"', "\"\"")),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: Kind, depth: usize, speeds: &[f64]) -> Line {
        let model = Model {
            name: "a, \"b\"".into(),
            backend: "some",
            threads: ["2".into(), "4".into()],
            weights: "ternary".into(),
            head: "int8".into(),
            kv: "f16",
            batch: 512,
            bytes: 1 << 20,
            parameters: 20_250_000,
            read_per_token: 1_000_000,
            kv_per_position: 1_000,
            kernel: None,
            limits: None,
        };
        let samples = speeds.iter().map(|&speed| Sample { speed, joules: None }).collect();
        Line { model, test: Test { kind, tokens: 128, depth, sequences: 1 }, samples, kernels: Vec::new() }
    }

    #[test]
    fn mean_and_deviation_of_a_sample() {
        let one = line(Kind::Decode, 0, &[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(one.mean(), 5.0);
        assert!((one.deviation() - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(line(Kind::Decode, 0, &[3.0]).deviation(), 0.0);
    }

    #[test]
    fn decode_reads_weights_and_the_tokens_before() {
        let decode = line(Kind::Decode, 1000, &[100.0]);
        assert_eq!(decode.bytes_per_token(), Some(1_000_000 + 1_064 * 1_000));
        assert!((decode.bandwidth().unwrap() - 0.2064).abs() < 1e-12);
        assert_eq!(line(Kind::Prefill, 1000, &[100.0]).bandwidth(), None);
        assert_eq!(decode.test.name(), "tg128 @ d1000");
        assert_eq!(line(Kind::Prefill, 0, &[1.0]).test.name(), "pp128");
        let shared = Test { kind: Kind::Decode, tokens: 128, depth: 16, sequences: 8 };
        assert_eq!(shared.name(), "tg128 x8 @ d16");
        assert_eq!(Line { test: shared, ..decode }.bytes_per_token(), None);
    }

    #[test]
    fn tables_have_a_row_for_each_test() {
        let table = [line(Kind::Prefill, 0, &[1.0]), line(Kind::Decode, 0, &[2.0, 2.0])];
        let csv = csv(&table);
        let lines: Vec<_> = csv.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("test,model,backend,threads,"));
        assert!(lines[1].starts_with("pp128,\"a, \"\"b\"\"\",some,4,"), "{}", lines[1]);
        assert!(lines[2].starts_with("tg128,\"a, \"\"b\"\"\",some,2,"), "{}", lines[2]);
        assert!(lines[1].ends_with(",,,"), "prefill has no bandwidth, and nothing tells joules: {}", lines[1]);
        let markdown = markdown(&table);
        let bars: Vec<_> = markdown.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(bars, [10; 4]);
        assert!(markdown.contains("| tg128 | 2.00 ± 0.00 |"), "{markdown}");
    }

    #[test]
    fn energy_is_divided_by_the_tokens_of_all_runs() {
        let mut decode = line(Kind::Decode, 0, &[2.0, 2.0]);
        assert_eq!(decode.joules_per_token(), None);
        decode.samples[0].joules = Some(100.0);
        assert_eq!(decode.joules_per_token(), None, "a run without");
        decode.samples[1].joules = Some(28.0);
        assert_eq!(decode.joules_per_token(), Some(0.5));
        let markdown = markdown(&[decode]);
        assert!(markdown.lines().all(|line| line.matches('|').count() == 11), "{markdown}");
        assert!(markdown.contains(" J/token |") && markdown.ends_with("| 0.5000 |\n"), "{markdown}");
    }

    #[test]
    fn kernels_are_summed_by_name() {
        let time = |kernel: &str, nanoseconds, bytes| KernelTime { kernel: kernel.into(), nanoseconds, bytes };
        let mut decode = line(Kind::Decode, 0, &[100.0]);
        assert!(kernel_table(&decode).contains("does not tell"));
        assert_eq!(decode.launches(), None);
        decode.kernels =
            vec![time("norm", 2_000.0, 0), time("product", 3_000.0, 9_000), time("product", 5_000.0, 7_000)];
        let text = kernel_table(&decode);
        assert!(text.contains("10.0 us together"), "{text}");
        let product = text.find("| product | 2 | 4.00 | 8.0 | 80.0 % | 2 |").expect("the sum of two launches");
        assert!(product < text.find("| norm | 1 | 2.00 | 2.0 | 20.0 % | - |").expect("no bytes"), "{text}");
    }

    #[test]
    fn a_devices_limits_make_columns() {
        let mut decode = line(Kind::Decode, 0, &[100.0, 100.0]);
        assert_eq!(decode.share_of_copy(), None);
        decode.model.limits = Some(Limits { copy_bandwidth: 2.0 * 100.0 * 1_064_000.0 });
        decode.model.kernel = Some("o4".into());
        decode.kernels = vec![KernelTime { kernel: "x".into(), nanoseconds: 1.0, bytes: 0 }; 141];
        let markdown = markdown(&[decode, line(Kind::Prefill, 0, &[1.0])]);
        let lines: Vec<_> = markdown.lines().collect();
        assert!(lines.iter().all(|line| line.matches('|').count() == 13), "{markdown}");
        assert!(lines[0].ends_with("| kernel | of a copy | launches |"), "{markdown}");
        assert!(lines[2].ends_with("| o4 | 50 % | 141 |") && lines[3].ends_with("| - | - | - |"), "{markdown}");
    }

    #[test]
    fn a_plot_has_a_line_for_each_test() {
        let with = |threads: &str, kind, speed| {
            let mut line = line(kind, 0, &[speed]);
            line.model.threads = [threads.into(), threads.into()];
            line
        };
        let table = [with("2", Kind::Prefill, 19.0), with("2", Kind::Decode, 5.0), with("1", Kind::Prefill, 10.0)];
        let svg = plot(&table);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains(">pp128</text>") && svg.contains("a, \"b\" ternary, head int8, on some"), "{svg}");
        let first = svg.find("pp128: 10.0 tok/s on 1").unwrap();
        assert!(first < svg.find("pp128: 19.0 tok/s on 2").unwrap(), "by threads");
    }

    #[test]
    fn tokens_are_the_same_each_time_and_in_the_vocabulary() {
        let tokens = random_tokens(1000, 50);
        assert_eq!(tokens, random_tokens(1000, 50));
        assert!(tokens.iter().all(|&token| token < 50));
        assert!((0..50).all(|token| tokens.contains(&token)));
    }
}
