//! The conformance suite on the machine's GPU, or on the imitated one; what is left out of a step, and bad requests.

mod conforms;
mod elsewhere;
mod follows;
mod limits;
mod nowhere;
mod plans;
mod tiles;
