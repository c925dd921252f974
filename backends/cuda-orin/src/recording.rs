//! A plan that is kept, and the graphs that run it again.

use std::sync::Arc;

use trine_backend::Result;

use crate::driver::{Driver, Launch, Prepared, Sequence, Transfer};

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

/// A step that can be run again.
pub(crate) struct Recording {
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
    pub(crate) fn new(launches: Vec<Launch>, selected_rows: bool) -> Recording {
        Recording { launches, selected_rows, tail: None, graphs: Vec::new(), runs: 0 }
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
