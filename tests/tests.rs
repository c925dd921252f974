//! All integration tests, in one program: linking is the slow part.

mod golden;
