//! Connections: how many there may be, and how long each may dawdle.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, Sleep, sleep};

use super::state::App;

/// Bytes of a request's head, and of what is buffered for a connection.
const BUFFER: usize = 64 << 10;

/// How long the listener rests when the system has no more sockets to give.
const REST: Duration = Duration::from_millis(50);

/// What a client is told for whom there is no connection.
const CROWDED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 119\r\n\r\n\
    {\"error\":{\"message\":\"too many connections are open\",\"type\":\"server_error\",\"code\":\"too_many_connections\",\"param\":null}}\n";

/// Serves connections until `stop` changes, and then those that are open until they end.
pub async fn serve(listener: TcpListener, app: Arc<App>, router: Router, mut stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(app.limits.connections));
    // Each connection holds a sender: there is nothing more to receive when all have ended.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => break,
        };
        let Ok((stream, _)) = accepted else {
            sleep(REST).await;
            continue;
        };
        // Tokens are to be seen when they come. It works without, only later.
        let _ = stream.set_nodelay(true);
        let Ok(place) = places.clone().try_acquire_owned() else {
            turn_away(stream);
            continue;
        };
        let (app, router, stop, open) = (app.clone(), router.clone(), stop.clone(), open.clone());
        tokio::spawn(async move {
            app.metrics.connections.add(1);
            connection(stream, &app, router, stop).await;
            app.metrics.connections.sub(1);
            drop((place, open));
        });
    }
    drop((listener, open));
    all_closed.recv().await;
}

/// Says that there is no place, to a client that may not listen.
fn turn_away(stream: TcpStream) {
    if let Ok(stream) = stream.into_std() {
        // A new socket's buffer takes this without waiting.
        let _ = io::Write::write(&mut &stream, CROWDED);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
}

/// One connection to its end. That it ends by an error is its client's affair.
async fn connection(stream: TcpStream, app: &App, router: Router, mut stop: watch::Receiver<bool>) {
    let io = TokioIo::new(Hurried::new(stream, app.limits.read_time));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.limits.head_time)
        .max_buf_size(BUFFER)
        .serve_connection(io, TowerToHyperService::new(router));
    let mut served = pin!(served);
    tokio::select! {
        _ = served.as_mut() => return,
        _ = stop.changed() => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}

/// A stream whose other end must take what is written within some time, or the connection fails.
struct Hurried<S> {
    stream: S,
    patience: Duration,
    /// Runs while the other end takes nothing.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Hurried<S> {
    fn new(stream: S, patience: Duration) -> Self {
        Hurried { stream, patience, waiting: None }
    }

    /// The outcome of a try to write, or an error where the other end has not taken anything for too long.
    fn hurry<T>(&mut self, tried: Poll<io::Result<T>>, cx: &mut Context) -> Poll<io::Result<T>> {
        if tried.is_ready() {
            self.waiting = None;
            return tried;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Hurried<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Hurried<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let tried = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.hurry(tried, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let tried = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.hurry(tried, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let tried = Pin::new(&mut this.stream).poll_flush(cx);
        this.hurry(tried, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_reader_that_takes_nothing_is_cut_off() {
        block_on(async {
            let (here, _there) = tokio::io::duplex(16);
            let mut here = Hurried::new(here, Duration::from_millis(50));
            let start = Instant::now();
            let error = here.write_all(&[0; 100]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(start.elapsed() >= Duration::from_millis(50));
        });
    }

    #[test]
    fn a_slow_reader_is_not() {
        block_on(async {
            let (here, mut there) = tokio::io::duplex(16);
            let mut here = Hurried::new(here, Duration::from_millis(500));
            let writing = tokio::spawn(async move { here.write_all(&[7; 100]).await });
            let mut bytes = [0; 10];
            for _ in 0..10 {
                sleep(Duration::from_millis(5)).await;
                there.read_exact(&mut bytes).await.unwrap();
            }
            writing.await.unwrap().unwrap();
        });
    }

    #[test]
    fn the_refusal_is_as_long_as_it_says() {
        let text = std::str::from_utf8(CROWDED).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{} bytes", body.len());
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }
}
