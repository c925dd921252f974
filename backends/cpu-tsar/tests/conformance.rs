//! The conformance suite on plain code and on the best instruction set, with one thread and with two.

use trine_cpu_tsar::{Isa, Options};

fn options(isa: Isa, threads: usize) -> Options {
    Options { threads: Some(threads), isa: Some(isa), ..Options::default() }
}

mod plain {
    use super::*;
    trine_backend::conformance_tests!(trine_cpu_tsar::CpuTsar, options(Isa::Plain, 1));
}

mod plain_on_two_threads {
    use super::*;
    trine_backend::conformance_tests!(trine_cpu_tsar::CpuTsar, options(Isa::Plain, 2));
}

mod best {
    use super::*;
    trine_backend::conformance_tests!(trine_cpu_tsar::CpuTsar, options(Isa::detect(), 1));
}

mod best_on_two_threads {
    use super::*;
    trine_backend::conformance_tests!(trine_cpu_tsar::CpuTsar, options(Isa::detect(), 2));
}
