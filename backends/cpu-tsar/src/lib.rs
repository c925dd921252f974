//! Trine on CPUs.
