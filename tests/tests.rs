//! All integration tests, in one program: linking is the slow part.

mod bad_input;
mod cli;
mod cross_backend;
mod eval;
mod gguf;
mod golden;
mod loading;
mod program;
mod pull;
mod quality;
mod quantize;
mod server;
mod session;
