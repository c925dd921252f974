//! The counts of all engines, each number with its source and what is published beside it.

use super::counts::{Counts, Stream};
use super::engine::{Engine, Phase};
use super::published::{Published, Source};
use super::shapes::Shapes;
use crate::Result;

/// A count, or a quotient of two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// How many.
    Count(u64),
    /// A ratio or percent.
    Quotient(f64),
}

impl Number {
    /// As a floating-point number.
    pub fn value(self) -> f64 {
        match self {
            Number::Count(count) => count as f64,
            Number::Quotient(quotient) => quotient,
        }
    }
}

/// One number of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Whose.
    pub engine: Engine,
    /// What it counts: `table_requests`, `bytes`, `requests_ratio`.
    pub quantity: String,
    /// The number.
    pub number: Number,
    /// Where it comes from.
    pub source: Source,
    /// What is published for it.
    pub published: Option<f64>,
}

impl Figure {
    /// Percent by which the number is above what is published.
    pub fn deviation(&self) -> Option<f64> {
        self.published.map(|published| (self.number.value() / published - 1.0) * 100.0)
    }
}

/// What each engine does for a model and a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The model's name.
    pub shape: String,
    /// Phase and tokens.
    pub phase: Phase,
    /// The engines in the order of [`Engine::ALL`].
    pub engines: Vec<(Engine, Counts)>,
    /// What is published for this model and phase.
    pub published: Option<Published>,
}

impl Report {
    /// Counts for all engines.
    ///
    /// # Errors
    /// As [`Engine::count`].
    pub fn new(shapes: &Shapes, phase: Phase) -> Result<Self> {
        let count = |engine: Engine| Ok((engine, engine.count(shapes, phase)?));
        Ok(Self {
            shape: shapes.name().to_owned(),
            phase,
            engines: Engine::ALL.into_iter().map(count).collect::<Result<_>>()?,
            published: Published::find(shapes, phase),
        })
    }

    /// Every number, engine by engine: requests and bytes by kind and in all, work, and for T-SAR TL-2's counts
    /// divided by its own (`…_ratio`).
    pub fn figures(&self) -> Vec<Figure> {
        let baseline = self.engines.iter().find(|(engine, _)| *engine == Engine::Tl2).map(|(_, counts)| counts);
        let mut figures = Vec::new();
        for (engine, counts) in &self.engines {
            let mut rows = Rows { engine: *engine, figures: &mut figures };
            self.traffic(&mut rows, counts);
            work(&mut rows, counts);
            match (engine, baseline) {
                (Engine::Tl2, _) => self.shares(&mut rows, counts),
                (Engine::TSar(..), Some(baseline)) => self.ratios(&mut rows, baseline, counts),
                (Engine::TSar(..), None) => {}
            }
        }
        figures
    }

    fn traffic(&self, rows: &mut Rows<'_>, counts: &Counts) {
        let used = || Stream::ALL.into_iter().map(|stream| (stream, counts.traffic(stream)));
        for (stream, traffic) in used().filter(|(_, traffic)| traffic.requests > 0) {
            let source = if stream == Stream::Rest { Source::Fitted } else { Source::Derived };
            rows.count(&format!("{}_requests", stream.name()), traffic.requests, source);
        }
        let (source, published) = match rows.engine {
            Engine::Tl2 => (Source::Fitted, self.published.map(|published| published.tl2)),
            Engine::TSar(..) => (Source::Derived, self.published.map(|published| published.tsar)),
        };
        rows.count("requests", counts.requests(), source).published = published;
        for (stream, traffic) in used().filter(|(_, traffic)| traffic.bytes > 0) {
            rows.count(&format!("{}_bytes", stream.name()), traffic.bytes, Source::Derived);
        }
        rows.count("bytes", counts.bytes(), Source::Derived);
    }

    /// How much of the baseline's requests go to tables, of those counted here and of those published.
    fn shares(&self, rows: &mut Rows<'_>, counts: &Counts) {
        let tables = counts.traffic(Stream::Tables).requests as f64 * 100.0;
        let published = self.published.and_then(|published| published.table_share);
        if let Some(share) = rows.quotient("table_requests_percent", tables, counts.requests() as f64, Source::Fitted) {
            share.published = published;
        }
        if let Some(total) = self.published.map(|published| published.tl2) {
            let quantity = "table_requests_percent_of_published";
            if let Some(share) = rows.quotient(quantity, tables, total, Source::Published) {
                share.published = published;
            }
        }
    }

    fn ratios(&self, rows: &mut Rows<'_>, baseline: &Counts, counts: &Counts) {
        let tables = baseline.traffic(Stream::Tables);
        if let Some(ratio) = rows.ratio("requests_ratio", baseline.requests(), counts.requests(), Source::Fitted) {
            ratio.published = self.published.map(|published| published.tl2 / published.tsar);
        }
        rows.ratio("table_requests_ratio", tables.requests, counts.requests(), Source::Derived);
        rows.ratio("bytes_ratio", baseline.bytes(), counts.bytes(), Source::Derived);
        rows.ratio("lookups_ratio", baseline.lookups, counts.lookups, Source::Derived);
        rows.ratio("micro_ops_ratio", baseline.micro_ops, counts.micro_ops, Source::Derived);
    }
}

fn work(rows: &mut Rows<'_>, counts: &Counts) {
    rows.count("lookups", counts.lookups, Source::Derived);
    if let Engine::TSar(..) = rows.engine {
        rows.count("tlut", counts.tluts, Source::Derived);
        rows.count("tgemv", counts.tgemvs, Source::Derived);
    }
    rows.count("micro_ops", counts.micro_ops, Source::Derived);
    rows.count("macs", counts.macs, Source::Derived);
    rows.ratio("macs_per_micro_op", counts.macs, counts.micro_ops, Source::Derived);
}

/// The figures of one engine, as they are added.
struct Rows<'a> {
    engine: Engine,
    figures: &'a mut Vec<Figure>,
}

impl Rows<'_> {
    fn add(&mut self, quantity: &str, number: Number, source: Source) -> &mut Figure {
        let (at, quantity) = (self.figures.len(), quantity.to_owned());
        self.figures.push(Figure { engine: self.engine, quantity, number, source, published: None });
        &mut self.figures[at]
    }

    fn count(&mut self, quantity: &str, count: u64, source: Source) -> &mut Figure {
        self.add(quantity, Number::Count(count), source)
    }

    fn ratio(&mut self, quantity: &str, of: u64, by: u64, source: Source) -> Option<&mut Figure> {
        self.quotient(quantity, of as f64, by as f64, source)
    }

    /// No figure where there is nothing to divide by.
    fn quotient(&mut self, quantity: &str, of: f64, by: f64, source: Source) -> Option<&mut Figure> {
        (by > 0.0).then(|| self.add(quantity, Number::Quotient(of / by), source))
    }
}
