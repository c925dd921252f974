//! The suite on the oracle, and on backends with one fault each, which it must find.

mod faults;
mod faulty;

mod oracle {
    use trine_backend::oracle::Oracle;

    trine_backend::conformance_tests!(Oracle, ());
}
