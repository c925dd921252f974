//! The server: one model behind an HTTP interface in the manner of OpenAI's.
//!
//! ```text
//! connection --guard--> routes --request--> Job --Queue--> Scheduler (a thread) --events--> answer
//! ```
//!
//! [`scheduler`] knows nothing of HTTP, and nothing outside of it touches the model. Connections are served by tokio; what
//! takes a processor (templates, tokens, grammars) is done aside, so that streams go on meanwhile.

pub mod answer;
pub mod chat;
pub mod connections;
pub mod error;
pub mod fields;
pub mod grammar;
pub mod guard;
pub mod job;
pub mod metrics;
pub mod queue;
pub mod request;
pub mod routes;
pub mod scheduler;
pub mod state;
pub mod tools;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use trine_backend::Backend;

use crate::engine::{Engine, EngineOptions};
use crate::files::ModelFiles;
use crate::{Error, Result};
use request::Model;
use scheduler::Scheduler;
use state::App;

/// Threads for connections. They have little to do: the processors are the model's.
const THREADS: usize = 2;

/// Threads for work that takes a processor; few of them ever run at the same time.
const BLOCKING_THREADS: usize = 4;

/// Time for connections to end after the last text has.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How a model comes to its slots.
pub struct Loading<B: Backend> {
    /// The device.
    pub device: B::Options,
    /// Formats, and one sequence for each slot.
    pub engine: EngineOptions,
    /// What clients call the model; its directory's name without it.
    pub name: Option<String>,
}

/// Listens at `addresses` (those that a name stands for), loads the model that `open` finds, and serves it until the
/// program is told to end. `note` says what an operator wants to know.
///
/// # Errors
/// The address can't be had, or the model can't be loaded.
pub fn run<B: Backend>(
    addresses: &[SocketAddr],
    app: App,
    loading: Loading<B>,
    open: impl FnOnce() -> Result<ModelFiles> + Send + 'static,
    note: impl Fn(&str) + Send + Sync + 'static,
) -> Result<()>
where
    B::Options: Send,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("trine-http")
        .enable_all()
        .build()
        .map_err(|error| Error::Request(format!("no threads for connections: {error}")))?;
    let outcome = runtime.block_on(serve(addresses, Arc::new(app), loading, open, Arc::new(note)));
    // What still holds a connection or a processor has had its time.
    runtime.shutdown_background();
    outcome
}

async fn serve<B: Backend>(
    addresses: &[SocketAddr],
    app: Arc<App>,
    loading: Loading<B>,
    open: impl FnOnce() -> Result<ModelFiles> + Send + 'static,
    note: Arc<dyn Fn(&str) + Send + Sync>,
) -> Result<()>
where
    B::Options: Send,
{
    let signals = Signals::new()?;
    let listener = TcpListener::bind(addresses).await.map_err(|error| cannot_listen(addresses, &error))?;
    let address = listener.local_addr().map_err(|error| cannot_listen(addresses, &error))?;
    note(&format!("listening on http://{address}"));
    let (stop, stopped) = watch::channel(false);
    let connections = tokio::spawn(connections::serve(listener, app.clone(), routes::router(app.clone()), stopped));
    let mut scheduler = start(app.clone(), loading, open, note.clone())?;

    let mut signals = signals;
    let outcome = tokio::select! {
        outcome = &mut scheduler => ended(outcome),
        () = signals.next() => {
            note("stopping: texts that are being written have a moment to end; a second signal ends at once");
            tokio::spawn(async move {
                signals.next().await;
                std::process::exit(crate::cli::Exit::Interrupted as i32);
            });
            app.stop();
            // While a model is being loaded there is nothing to wait for.
            if app.is_loaded() { ended(scheduler.await) } else { Ok(()) }
        }
    };
    app.stop();
    // Connections that are idle end at once, the others when their answers are written.
    let _ = stop.send(true);
    let _ = tokio::time::timeout(LAST_WORDS, connections).await;
    outcome
}

/// The outcome of the scheduler's thread.
fn ended(outcome: std::result::Result<Result<()>, oneshot::error::RecvError>) -> Result<()> {
    outcome.unwrap_or_else(|_| Err(Error::Request("the scheduler has ended unexpectedly".into())))
}

fn cannot_listen(addresses: &[SocketAddr], error: &std::io::Error) -> Error {
    let all: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    Error::Request(format!("can't listen on {}: {error}", all.join(", ")))
}

/// Loads the model and runs its scheduler, on a thread. What it receives is how that ended.
fn start<B: Backend>(
    app: Arc<App>,
    loading: Loading<B>,
    open: impl FnOnce() -> Result<ModelFiles> + Send + 'static,
    note: Arc<dyn Fn(&str) + Send + Sync>,
) -> Result<oneshot::Receiver<Result<()>>>
where
    B::Options: Send,
{
    let (done, outcome) = oneshot::channel();
    let work = move || {
        // The receiver is gone only where the program ends anyway.
        let _ = done.send(load(&app, loading, open, &*note).map(Scheduler::run));
    };
    std::thread::Builder::new()
        .name("trine-model".into())
        .spawn(work)
        .map_err(|error| Error::Request(format!("no thread for the model: {error}")))?;
    Ok(outcome)
}

fn load<B: Backend>(
    app: &App,
    loading: Loading<B>,
    open: impl FnOnce() -> Result<ModelFiles>,
    note: &dyn Fn(&str),
) -> Result<Scheduler<B>> {
    let files = open()?;
    files.require_tokenizer()?;
    let engine = Engine::<B>::load(&loading.device, &files, &loading.engine, &mut |_| {})?;
    let context = engine.extent().kv.context;
    let ModelFiles { path, config, tokenizer, chat, .. } = files;
    let last = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let name = loading.name.unwrap_or(last);
    if chat.is_none() {
        note(&format!(
            "warning: {name} has no chat template; in a chat it continues what was said, as it would any text"
        ));
    }
    let tokenizer = tokenizer.ok_or_else(|| Error::file(&path, "tokenizer.json is missing"))?;
    let model = Model::new(name.clone(), &config, tokenizer, chat, context)?;
    let scheduler = Scheduler::new(engine, app.queue.clone(), app.metrics.clone())?;
    app.ready(model);
    let slots = loading.engine.sequences;
    note(&format!("{name} is ready: {slots} slots of {context} tokens on {}", B::NAME));
    Ok(scheduler)
}

/// The signals by which the program is told to end.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Signals {
            #[cfg(unix)]
            terminate: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
                .map_err(|error| Error::Request(format!("the signal to end can't be caught: {error}")))?,
        })
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    }
}
