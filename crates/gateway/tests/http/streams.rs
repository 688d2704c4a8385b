//! Time and failure in streams: waiting, hanging, failing, readers that leave or do not read.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::HttpBody;
use expect_test::expect;
use futures_util::StreamExt;
use motley_gateway::Failure;
use serde_json::json;

use crate::client::{Client, config, post};
use crate::fake::Step;

const ROUTE: &str = "/v1/completions";

fn body(stream: bool) -> String {
    json!({"prompt": "a", "max_tokens": 9, "stream": stream}).to_string()
}

#[tokio::test(start_paused = true)]
async fn a_waiting_stream_says_that_it_is_alive() {
    let client = Client::new();
    client.fake.play(vec![Step::Wait(Duration::from_secs(50)), Step::Say("x")]);
    let answer = client.send(post(ROUTE, body(true))).await;
    assert_eq!(answer.text.matches(": waiting\n\n").count(), 3);
    assert!(answer.text.starts_with(": waiting\n\n"));
    assert!(answer.events().1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_before_the_first_byte_has_a_status() {
    let client = Client::new();
    for (failure, status, code, retry) in [
        (Failure::NodeLost, 503, "node_lost", "2"),
        (Failure::Stopping, 503, "server_stopping", "2"),
        (Failure::NoPlan { reason: "too little memory".to_owned() }, 503, "no_plan", "30"),
        (Failure::Compute { cause: "nan".to_owned() }, 500, "generation_failed", ""),
    ] {
        client.fake.play(vec![Step::Wait(Duration::from_secs(14)), Step::Fail(failure)]);
        for stream in [false, true] {
            let answer = client.send(post(ROUTE, body(stream))).await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.json()["error"]["code"], code);
            assert_eq!(answer.header("retry-after"), retry);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_after_the_first_byte_is_an_event_and_the_end() {
    let client = Client::new();
    client.fake.play(vec![Step::Say("x"), Step::Fail(Failure::NodeLost)]);
    let answer = client.send(post(ROUTE, body(true))).await;
    assert_eq!(answer.status, 200);
    let (events, done) = answer.events();
    assert!(!done);
    expect![[r#"{"error":{"message":"a device was lost and its work could not be taken over; try again","type":"unavailable_error","param":null,"code":"node_lost"}}"#]]
    .assert_eq(&events.last().unwrap().to_string());
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_an_end_is_a_failure() {
    let client = Client::new();
    client.fake.play(vec![Step::Say("x"), Step::Abandon]);
    let answer = client.send(post(ROUTE, body(true))).await;
    assert_eq!(answer.events().0.last().unwrap()["error"]["code"], "generation_failed");
    assert_eq!(client.send(post(ROUTE, body(false))).await.status, 500);
}

#[tokio::test(start_paused = true)]
async fn hanging_ends_in_bounded_time_and_is_cancelled() {
    let client = Client::new();
    let start = tokio::time::Instant::now();
    client.fake.play(vec![Step::Hang]);
    let answer = client.send(post(ROUTE, body(false))).await;
    assert_eq!((answer.status.as_u16(), start.elapsed().as_secs()), (503, 600));
    client.fake.play(vec![Step::Say("x"), Step::Hang]);
    let start = tokio::time::Instant::now();
    let answer = client.send(post(ROUTE, body(true))).await;
    assert_eq!(answer.events().0.last().unwrap()["error"]["code"], "timeout");
    assert_eq!(start.elapsed().as_secs(), 60);
    tokio::task::yield_now().await;
    assert_eq!(client.fake.cancelled(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_whole_answer_is_limited_too() {
    let mut config = config();
    config.limits.total = Duration::from_secs(100);
    let client = Client::with(config);
    let slow = [Step::Wait(Duration::from_secs(40)), Step::Say("x")];
    client.fake.play(slow.iter().cycle().take(18).cloned().collect());
    let start = tokio::time::Instant::now();
    assert_eq!(client.send(post(ROUTE, body(false))).await.status, 503);
    assert_eq!(start.elapsed().as_secs(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_cancels_its_generation() {
    let client = Client::new();
    client.fake.play(vec![Step::Say("x"), Step::Hang]);
    let response = client.start(post(ROUTE, body(true))).await;
    let mut frames = response.into_body().into_data_stream();
    assert!(frames.next().await.is_some());
    assert_eq!(client.fake.cancelled(), 0);
    drop(frames);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(client.fake.cancelled(), 1);
    let metrics = client.get("/metrics").await.text;
    assert!(metrics.contains("finished_reason=\"cancelled\"} 1\n"), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_the_first_token_cancels_too() {
    let client = Client::new();
    client.fake.play(vec![Step::Hang]);
    for stream in [false, true] {
        let waiting = client.start(post(ROUTE, body(stream)));
        let gone = tokio::time::timeout(Duration::from_secs(1), waiting).await;
        assert!(gone.is_err());
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(client.fake.cancelled(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_does_not_read_is_bounded_and_then_dropped() {
    let mut config = config();
    config.limits.unread_bytes = 10_000;
    let client = Client::with(config);
    client.fake.play(vec![Step::Flood]);
    let response = client.start(post(ROUTE, body(true))).await;
    tokio::time::sleep(Duration::from_secs(59)).await;
    let sent = client.fake.sent.load(Ordering::SeqCst);
    // What fits unread, and the deltas of the channel in between.
    assert!((10..40).contains(&sent), "{sent}");
    assert_eq!(client.fake.cancelled(), 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(client.fake.cancelled(), 1);
    let mut frames = response.into_body().into_data_stream();
    let mut cut_off = false;
    while let Some(frame) = frames.next().await {
        cut_off |= frame.is_err();
    }
    assert!(cut_off, "the client must see that something is missing");
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_everything() {
    let mut config = config();
    config.limits.unread_bytes = 1_000;
    let client = Client::with(config);
    client.fake.play(vec![Step::Say("x"); 50]);
    let response = client.start(post(ROUTE, body(true))).await;
    assert!(!response.body().is_end_stream());
    let mut frames = response.into_body().into_data_stream();
    let mut text = String::new();
    while let Some(frame) = frames.next().await {
        text.push_str(std::str::from_utf8(&frame.unwrap()).unwrap());
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(text.matches("\"text\":\"x\"").count(), 50);
    assert!(text.ends_with("data: [DONE]\n\n"));
}
