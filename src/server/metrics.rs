//! What the server counts, in Prometheus' text format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::job::Job;

/// A number that is read and written from any thread.
#[derive(Debug, Default)]
pub struct Number(AtomicU64);

impl Number {
    /// Sets it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds to it.
    pub fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }

    /// Takes from it what was added before.
    pub fn sub(&self, value: u64) {
        self.0.fetch_sub(value, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// How often something took how long.
#[derive(Debug, Default)]
pub struct Histogram {
    /// For each bound how many were at most so long and longer than the bound before; the last one is for the rest.
    counts: [Number; BOUNDS.len() + 1],
    microseconds: Number,
}

impl Histogram {
    /// Counts one that took `time`.
    pub fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.counts[BOUNDS.partition_point(|&bound| bound < seconds)].add(1);
        self.microseconds.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(Number::get).sum()
    }

    /// What they took on average; `None` where there were none.
    pub fn mean(&self) -> Option<Duration> {
        self.microseconds.get().checked_div(self.count()).map(Duration::from_micros)
    }

    fn render(&self, out: &mut String, name: &str, help: &str) {
        header(out, name, help, "histogram");
        let mut total = 0;
        for (count, bound) in self.counts.iter().zip(BOUNDS) {
            total += count.get();
            line(out, format_args!("{name}_bucket{{le=\"{bound}\"}} {total}"));
        }
        total += self.counts[BOUNDS.len()].get();
        line(out, format_args!("{name}_bucket{{le=\"+Inf\"}} {total}"));
        line(out, format_args!("{name}_sum {}", self.microseconds.get() as f64 / 1e6));
        line(out, format_args!("{name}_count {total}"));
    }
}

/// Statuses that are counted apart.
const STATUSES: [u16; 11] = [200, 204, 400, 401, 403, 404, 405, 413, 429, 500, 503];

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Slots there are.
    pub slots: Number,
    /// Slots in use.
    pub busy: Number,
    /// Jobs that wait for one.
    pub waiting: Number,
    /// Open connections.
    pub connections: Number,
    /// Answers by status, and those of another one.
    answers: [Number; STATUSES.len()],
    other_answers: Number,
    prompt_tokens: Number,
    cached_tokens: Number,
    tokens: Number,
    steps: Number,
    rows: Number,
    abandoned: Number,
    failed: Number,
    refused: Number,
    /// From a request's arrival to its last token.
    pub request: Histogram,
    /// From its arrival to its slot.
    pub wait: Histogram,
    /// From its arrival to its first token.
    pub first_token: Histogram,
    /// Between the tokens of a text.
    pub between_tokens: Histogram,
}

impl Metrics {
    /// Counts an answer.
    pub fn answer(&self, status: u16) {
        let known = STATUSES.iter().position(|&known| known == status);
        known.map_or(&self.other_answers, |place| &self.answers[place]).add(1);
    }

    pub(super) fn admit(&self, job: &Job, kept: usize) {
        self.wait.observe(job.arrived.elapsed());
        self.prompt_tokens.add(job.prompt.len() as u64);
        self.cached_tokens.add(kept as u64);
    }

    pub(super) fn step(&self, rows: usize, tokens: usize) {
        self.steps.add(1);
        self.rows.add(rows as u64);
        self.tokens.add(tokens as u64);
    }

    pub(super) fn abandon(&self) {
        self.abandoned.add(1);
    }

    pub(super) fn fail(&self) {
        self.failed.add(1);
    }

    pub(super) fn refuse(&self, job: &Job) {
        if job.is_abandoned() { &self.abandoned } else { &self.refused }.add(1);
    }

    /// Everything in the text format that Prometheus reads, version 0.0.4.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(8 << 10);
        header(&mut out, "trine_http_responses_total", "Answers by status.", "counter");
        for (status, count) in STATUSES.iter().zip(&self.answers) {
            line(&mut out, format_args!("trine_http_responses_total{{status=\"{status}\"}} {}", count.get()));
        }
        let other = self.other_answers.get();
        line(&mut out, format_args!("trine_http_responses_total{{status=\"other\"}} {other}"));
        let numbers = [
            ("trine_slots", "Texts that can be written at the same time.", "gauge", &self.slots),
            ("trine_slots_busy", "Texts that are being written.", "gauge", &self.busy),
            ("trine_queue_depth", "Requests that wait for a slot.", "gauge", &self.waiting),
            ("trine_connections", "Open connections.", "gauge", &self.connections),
            ("trine_prompt_tokens_total", "Tokens of prompts.", "counter", &self.prompt_tokens),
            ("trine_prompt_tokens_cached_total", "Those found in the cache.", "counter", &self.cached_tokens),
            ("trine_tokens_total", "Tokens drawn.", "counter", &self.tokens),
            ("trine_steps_total", "Steps of the model.", "counter", &self.steps),
            ("trine_step_rows_total", "Tokens that went through the model.", "counter", &self.rows),
            ("trine_requests_cancelled_total", "Requests whose client left.", "counter", &self.abandoned),
            ("trine_requests_refused_total", "Requests that never got a slot.", "counter", &self.refused),
            ("trine_requests_failed_total", "Requests that failed at work.", "counter", &self.failed),
        ];
        for (name, help, kind, number) in numbers {
            header(&mut out, name, help, kind);
            line(&mut out, format_args!("{name} {}", number.get()));
        }
        self.request.render(&mut out, "trine_request_seconds", "From arrival to the last token.");
        self.wait.render(&mut out, "trine_queue_seconds", "From arrival to a slot.");
        self.first_token.render(&mut out, "trine_first_token_seconds", "From arrival to the first token.");
        self.between_tokens.render(&mut out, "trine_token_interval_seconds", "Between the tokens of a text.");
        out
    }
}

fn header(out: &mut String, name: &str, help: &str, kind: &str) {
    line(out, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
}

fn line(out: &mut String, text: std::fmt::Arguments) {
    writeln!(out, "{text}").expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_add_up() {
        let histogram = Histogram::default();
        for milliseconds in [1, 2, 2000, 400_000] {
            histogram.observe(Duration::from_millis(milliseconds));
        }
        let mut out = String::new();
        histogram.render(&mut out, "x", "About x.");
        for expected in [
            "# TYPE x histogram",
            "x_bucket{le=\"0.001\"} 1",
            "x_bucket{le=\"0.0025\"} 2",
            "x_bucket{le=\"1\"} 2",
            "x_bucket{le=\"2.5\"} 3",
            "x_bucket{le=\"300\"} 3",
            "x_bucket{le=\"+Inf\"} 4",
            "x_sum 402.003",
            "x_count 4",
        ] {
            assert!(out.lines().any(|line| line == expected), "{expected}\n{out}");
        }
        assert_eq!(histogram.mean(), Some(Duration::from_micros(100_500_750)));
        assert_eq!(Histogram::default().mean(), None);
    }

    #[test]
    fn answers_are_counted_by_status() {
        let metrics = Metrics::default();
        for status in [200, 200, 429, 418] {
            metrics.answer(status);
        }
        let text = metrics.render();
        for expected in ["{status=\"200\"} 2", "{status=\"429\"} 1", "{status=\"other\"} 1", "{status=\"500\"} 0"] {
            assert!(text.contains(&format!("trine_http_responses_total{expected}\n")), "{expected}\n{text}");
        }
        // Each line is a comment or a name and a number.
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (_, number) = line.rsplit_once(' ').unwrap();
            number.parse::<f64>().unwrap();
        }
    }
}
