//! The `trine` program.

fn main() {}
