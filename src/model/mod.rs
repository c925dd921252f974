//! A model: its configuration, and what is made of it.

pub mod config;

pub use config::*;
