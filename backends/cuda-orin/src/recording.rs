//! Plans that are kept, and the graphs that run them again.

use std::sync::Arc;

use trine_backend::Result;

use crate::driver::{Driver, Launch, Prepared, Sequence, Transfer};
use crate::op::Op;
use crate::plan::Shape;

/// Plans that are kept at most: decoding at several depths, prefill chunks, and their last pieces.
const MOST: usize = 24;

/// What follows the ops of a step, as the host asks for it afterwards.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tail {
    /// The launches that make the result.
    pub(crate) launches: Vec<Launch>,
    /// The copy that brings it to the host, where they do not leave it there.
    pub(crate) fetch: Option<Transfer>,
    /// Whether it makes the next step's row.
    pub(crate) replaces: bool,
}

/// The ops of a step as they come. Most steps are the step before with other rows: as long as the ops are those of the
/// last one they are compared and nothing is built.
#[derive(Default)]
pub(crate) struct Ops {
    /// Those of a step that was recorded.
    known: Arc<[Op]>,
    /// How many of them have come again.
    same: usize,
    /// All ops of the step, from the first one on that differs.
    differing: Option<Vec<Op>>,
}

impl Ops {
    /// Begins a step.
    pub(crate) fn begin(&mut self) {
        self.same = 0;
        self.differing = None;
    }

    /// The next op: whether it is `same` as one that is known, or else what it is.
    pub(crate) fn next(&mut self, same: impl FnOnce(&Op) -> bool, op: impl FnOnce() -> Op) {
        match &mut self.differing {
            Some(ops) => ops.push(op()),
            None if self.known.get(self.same).is_some_and(same) => self.same += 1,
            None => {
                let mut ops = self.known[..self.same].to_vec();
                ops.push(op());
                self.differing = Some(ops);
            }
        }
    }

    /// All ops of the step, which are known from now on.
    pub(crate) fn end(&mut self) -> Arc<[Op]> {
        if self.differing.is_some() || self.same < self.known.len() {
            let ops = self.differing.take().unwrap_or_else(|| self.known[..self.same].to_vec());
            self.known = ops.into();
        }
        Arc::clone(&self.known)
    }

    /// Lets go of them, and of what they hold.
    pub(crate) fn forget(&mut self) {
        *self = Ops::default();
    }
}

/// A step that can be run again.
pub(crate) struct Recording {
    ops: Arc<[Op]>,
    shape: Shape,
    /// The first one brings the step's rows.
    launches: Vec<Launch>,
    /// Whether launches look at the selected rows.
    selected_rows: bool,
    /// What was asked for after the last run: it is likely to be asked for again.
    pub(crate) tail: Option<Tail>,
    graphs: Vec<Graph>,
    runs: usize,
}

/// A recording's launches with what followed them once; `made`: without bringing the step's rows.
struct Graph {
    tail: Option<Tail>,
    made: bool,
    graph: Box<dyn Prepared>,
}

impl Recording {
    pub(crate) fn new(ops: Arc<[Op]>, shape: Shape, launches: Vec<Launch>, selected_rows: bool) -> Recording {
        Recording { ops, shape, launches, selected_rows, tail: None, graphs: Vec::new(), runs: 0 }
    }

    /// Its launches with what follows them; `made`: the device has the step's row already.
    pub(crate) fn sequence(&self, made: bool) -> Sequence {
        let mut launches = self.launches[usize::from(made)..].to_vec();
        launches.extend(self.tail.iter().flat_map(|tail| tail.launches.clone()));
        Sequence { launches, fetch: self.tail.as_ref().and_then(|tail| tail.fetch) }
    }

    /// Starts it. A step that comes again is likely to come many times: from its second run on it is a graph. `made`: the
    /// device has the step's row already.
    pub(crate) fn run(&mut self, driver: &Arc<dyn Driver>, made: bool) -> Result<()> {
        // The device makes no selected rows.
        let made = made && !self.selected_rows;
        self.runs += 1;
        if self.runs == 1 || driver.facts().serial {
            return driver.start(&self.sequence(made));
        }
        if let Some(kept) = self.graphs.iter().find(|kept| kept.made == made && kept.tail == self.tail) {
            return kept.graph.run();
        }
        let graph = Arc::clone(driver).prepare(&self.sequence(made), true)?;
        graph.run()?;
        self.graphs.push(Graph { tail: self.tail.clone(), made, graph });
        Ok(())
    }
}

/// The last plans that were run, the latest last.
#[derive(Default)]
pub(crate) struct Recordings(Vec<Recording>);

impl Recordings {
    /// The recording of these ops, if there is one.
    pub(crate) fn find(&mut self, ops: &Arc<[Op]>, shape: Shape) -> Option<&mut Recording> {
        let same = |kept: &Recording| Arc::ptr_eq(&kept.ops, ops) || kept.ops == *ops;
        let at = self.0.iter().rposition(|kept| kept.shape == shape && same(kept))?;
        let found = self.0.remove(at);
        self.0.push(found);
        self.0.last_mut()
    }

    /// Keeps a new one, and lets go of the one that was used the longest ago.
    pub(crate) fn keep(&mut self, recording: Recording) {
        if self.0.len() == MOST {
            self.0.remove(0);
        }
        self.0.push(recording);
    }

    /// The one that was run last.
    pub(crate) fn latest(&mut self) -> Option<&mut Recording> {
        self.0.last_mut()
    }

    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}
