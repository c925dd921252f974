//! What all requests share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::error::{ApiError, ApiResult};
use super::guard::Access;
use super::metrics::Metrics;
use super::queue::Queue;
use super::request::Model;

/// Bounds on what clients can take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: usize,
    /// Connections that are open at the same time.
    pub connections: usize,
    /// Requests that wait for a slot.
    pub queue: usize,
    /// From a request's arrival to the end of its answer.
    pub request: Duration,
    /// For a request's head, and between requests on one connection.
    pub head_time: Duration,
    /// For a request's body.
    pub body_time: Duration,
    /// For a client to take what it was sent.
    pub read_time: Duration,
    /// For texts that are being written when the server stops.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body: 1 << 20,
            connections: 256,
            queue: 64,
            request: Duration::from_secs(600),
            head_time: Duration::from_secs(15),
            body_time: Duration::from_secs(30),
            read_time: Duration::from_secs(30),
            grace: Duration::from_secs(10),
        }
    }
}

/// Requests that are prepared at the same time: templates, tokens and grammars take a processor that the model needs too.
const PREPARATIONS: usize = 2;

/// What all requests share.
pub struct App {
    pub(super) limits: Limits,
    pub(super) access: Access,
    pub(super) metrics: Arc<Metrics>,
    pub(super) queue: Arc<Queue>,
    pub(super) log: Box<dyn Fn(&str) + Send + Sync>,
    /// When the server was started, in seconds since 1970.
    pub(super) started: u64,
    model: OnceLock<Arc<Model>>,
    stopping: AtomicBool,
    preparations: Arc<Semaphore>,
}

impl App {
    /// A server whose model is still to be loaded. `log` takes a line for each request.
    pub fn new(limits: Limits, access: Access, log: Box<dyn Fn(&str) + Send + Sync>) -> Self {
        App {
            queue: Arc::new(Queue::new(limits.queue)),
            metrics: Arc::default(),
            limits,
            access,
            log,
            started: super::answer::now(),
            model: OnceLock::new(),
            stopping: AtomicBool::new(false),
            preparations: Arc::new(Semaphore::new(PREPARATIONS)),
        }
    }

    /// From now on requests for `model` are answered.
    pub fn ready(&self, model: Model) {
        // There is one model: a second one would be a fault of the caller, and changes nothing.
        let _ = self.model.set(Arc::new(model));
    }

    /// Whether there is a model.
    pub fn is_loaded(&self) -> bool {
        self.model.get().is_some()
    }

    /// The model.
    ///
    /// # Errors
    /// It is not loaded yet, or the server stops.
    pub fn model(&self) -> ApiResult<Arc<Model>> {
        if self.is_stopping() {
            return Err(ApiError::unavailable("the server is stopping", "stopping", 5));
        }
        let loading = || ApiError::unavailable("the model is being loaded", "loading", 2);
        self.model.get().cloned().ok_or_else(loading)
    }

    /// No more requests are taken, and running texts have the time that is set for them.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.queue.stop(self.limits.grace);
    }

    /// Whether the server stops.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Does work that takes a processor, away from those that serve connections.
    ///
    /// # Errors
    /// The work panicked.
    pub async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> ApiResult<T> {
        let gone = || ApiError::internal("the request could not be prepared");
        let permit = self.preparations.clone().acquire_owned().await.map_err(|_| gone())?;
        // The permit goes with the work, which goes on even where its client has left.
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(permit);
            done
        });
        done.await.map_err(|_| gone())
    }

    /// Seconds after which a place in the queue may be free: what a request takes on average.
    pub fn patience(&self) -> u64 {
        let mean = self.metrics.request.mean().unwrap_or(Duration::from_secs(1));
        (mean.as_secs_f64() / self.metrics.slots.get().max(1) as f64).ceil().clamp(1.0, 60.0) as u64
    }
}
