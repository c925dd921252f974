//! What a step's closure asked for, before it is planned.

use trine_backend::recorded::{self, Fate};

pub(crate) use trine_backend::recorded::Shared;

use crate::buffers::Buffer;
use crate::kv::Cache;
use crate::weights::Matrix;

pub(crate) type Buf = Shared<Buffer>;

/// One op of a step.
pub(crate) type Op = recorded::Op<Buf, Shared<Matrix>, Shared<Cache>>;

/// The ops of a step as they come.
pub(crate) type Ops = recorded::Ops<Buf, Shared<Matrix>, Shared<Cache>>;

/// Whether the values of `buf` are needed by any of the `later` ops, or by someone who reads the buffer after the step.
pub(crate) fn is_needed(buf: &Buf, later: &[Op]) -> bool {
    recorded::fate(buf, later) != Fate::Lost
}
