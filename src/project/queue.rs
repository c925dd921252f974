//! Mean value analysis of a closed queueing network with one class of customers.

/// Completions per unit of time with `customers` that each spend `think` on their own and then ask every one of the
/// `stations` for its service time, one customer at a time at each.
///
/// Source: Reiser and Lavenberg, Mean-Value Analysis of Closed Multichain Queuing Networks (1980); a customer that arrives
/// sees the queues of the network with one customer less.
pub(super) fn throughput<const N: usize>(customers: u32, think: f64, stations: [f64; N]) -> f64 {
    let mut queues = [0.0; N];
    let mut rate = 0.0;
    for present in 1..=customers {
        let waits: [f64; N] = std::array::from_fn(|at| stations[at] * (1.0 + queues[at]));
        rate = f64::from(present) / (think + waits.iter().sum::<f64>());
        queues = waits.map(|wait| rate * wait);
    }
    rate
}
